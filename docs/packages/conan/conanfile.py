"""A recipe of the source folder that it lies in: conan create docs/packages/conan [-o ferry/*:c=True]"""
import os

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy


class Ferry(ConanFile):
    name = "ferry"
    version = "0.1.0"
    description = "Expert offloading policies for Mixture-of-Experts language models"
    license = "MIT"
    topics = ("mixture-of-experts", "llm", "offloading", "cache")
    settings = "os", "compiler", "build_type", "arch"
    options = {"c": [True, False]}  # libferry, the C interface
    default_options = {"c": False}
    languages = "C++"

    def export_sources(self):
        root = os.path.join(self.recipe_folder, "..", "..", "..")
        for pattern in ("CMakeLists.txt", "LICENSE", "include/*", "reference_engine/c_interface/*", "reference_engine/stacks/*",
                        "reference_engine/support/*"):
            copy(self, pattern, src=root, dst=self.export_sources_folder)

    def requirements(self):
        if self.options.c:
            self.requires("fmt/[>=9]")
            self.requires("nlohmann_json/[>=3.11]", visible=False)

    def layout(self):
        cmake_layout(self)

    def package_id(self):
        if not self.info.options.c:
            self.info.clear()

    def generate(self):
        CMakeDeps(self).generate()
        toolchain = CMakeToolchain(self)
        toolchain.variables["FERRY_BUILD_LIBRARY"] = bool(self.options.c)
        for part in ("ENGINE", "TESTS", "EXAMPLES"):
            toolchain.variables["FERRY_BUILD_" + part] = False
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()
        copy(self, "LICENSE", src=self.source_folder, dst=os.path.join(self.package_folder, "licenses"))

    def package_info(self):
        self.cpp_info.set_property("cmake_file_name", "ferry")
        self.cpp_info.components["headers"].set_property("cmake_target_name", "ferry::ferry")
        self.cpp_info.components["headers"].set_property("pkg_config_name", "ferry")
        self.cpp_info.components["headers"].bindirs = self.cpp_info.components["headers"].libdirs = []
        if self.options.c:
            self.cpp_info.components["c"].set_property("cmake_target_name", "ferry::c")
            self.cpp_info.components["c"].set_property("pkg_config_name", "ferry-c")
            self.cpp_info.components["c"].libs = ["ferry"]
            self.cpp_info.components["c"].requires = ["headers", "fmt::fmt"]
