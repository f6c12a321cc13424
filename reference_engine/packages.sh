# Sourced by the scripts that build: installs the Debian packages that are missing.

# need_packages NAME...
need_packages() {
  local missing=() name
  for name in "$@"; do
    dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q 'ok installed' || missing+=("$name")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || {
      echo "these Debian packages are missing and there is no sudo: install them as root: ${missing[*]}" >&2
      exit 2
    }
    as_root=(sudo)
  fi
  echo "== installing Debian packages: ${missing[*]}"
  "${as_root[@]}" apt-get update -qq </dev/null
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" </dev/null >/dev/null
}

build_packages=(g++ make cmake ninja-build libeigen3-dev nlohmann-json3-dev libfmt-dev libcli11-dev
  liburing-dev libxxhash-dev libpcre2-dev libsentencepiece-dev libutf8proc-dev libcpp-httplib-dev libedit-dev libjs-chart.js)
test_packages=(doctest-dev clang lld llvm clang-format libboost-context-dev libsimde-dev ccache python3-numpy pkg-config)
site_packages=(doxygen doxygen-awesome-css)
