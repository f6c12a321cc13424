# The ferry command with its CUDA device, for any card from Turing on (the driver compiles what it needs once):
#   docker build -f docs/packages/docker/cuda.Dockerfile -t ferry-cuda .
#   docker run --rm -it --gpus all -v FOLDER:/models -e FERRY_MODELS=/models ferry-cuda run --model NAME --device cuda
FROM nvidia/cuda:12.9.1-devel-ubuntu24.04 AS build
COPY CMakeLists.txt LICENSE /ferry/
COPY include /ferry/include
COPY reference_engine /ferry/reference_engine
RUN bash -c '. /ferry/reference_engine/packages.sh && need_packages "${build_packages[@]}"' \
    && cmake -S /ferry -B /build -G Ninja -DCMAKE_BUILD_TYPE=Release -DFERRY_UNITY=ON -DFERRY_CUDA=ON \
         -DFERRY_BUILD_TESTS=OFF -DFERRY_BUILD_EXAMPLES=OFF \
    && cmake --build /build && cmake --install /build --prefix /opt/ferry --strip

FROM nvidia/cuda:12.9.1-runtime-ubuntu24.04
RUN apt-get update && apt-get install -y --no-install-recommends libfmt9 liburing2 libpcre2-8-0 libsentencepiece0 \
      libutf8proc3 libcpp-httplib0.14t64 libedit2 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/ferry /usr/local
EXPOSE 8080
ENTRYPOINT ["ferry"]
CMD ["help"]
