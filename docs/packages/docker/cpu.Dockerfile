# The ferry command on a CPU:
#   docker build -f docs/packages/docker/cpu.Dockerfile -t ferry .
#   docker run --rm -it -v FOLDER:/models -e FERRY_MODELS=/models ferry chat --model NAME
#   docker run --rm -p 8080:8080 ferry serve --model tiny-mixtral --port 8080 --host 0.0.0.0
FROM debian:12-slim AS build
COPY CMakeLists.txt LICENSE /ferry/
COPY include /ferry/include
COPY reference_engine /ferry/reference_engine
RUN /ferry/reference_engine/run --version && cmake --install /ferry/build/engine --prefix /opt/ferry --strip

FROM debian:12-slim
RUN apt-get update && apt-get install -y --no-install-recommends libfmt9 liburing2 libpcre2-8-0 libsentencepiece0 \
      libutf8proc2 libcpp-httplib0.11 libedit2 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/ferry /usr/local
EXPOSE 8080
ENTRYPOINT ["ferry"]
CMD ["help"]
