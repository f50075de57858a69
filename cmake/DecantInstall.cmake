# Installs the headers and a package configuration, so that `find_package(decant)` works.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(decant_config_folder ${CMAKE_INSTALL_DATADIR}/cmake/decant)

install(DIRECTORY include/decant DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS decant EXPORT decant-targets)
install(EXPORT decant-targets NAMESPACE decant:: DESTINATION ${decant_config_folder})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/decant)

# Dependencies that came from packages are found again by the consumer; fetched ones are installed beside Decant.
foreach(name IN ITEMS eigen xsimd json)
    if(DECANT_FETCHED_${name})
        get_filename_component(package "${decant_${name}_header}" DIRECTORY)
        install(DIRECTORY "${DECANT_FETCHED_${name}}/${package}"
                DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/decant-deps/${name})
    endif()
endforeach()

configure_package_config_file(cmake/decant-config.cmake.in "${CMAKE_CURRENT_BINARY_DIR}/decant-config.cmake"
                              INSTALL_DESTINATION ${decant_config_folder} PATH_VARS CMAKE_INSTALL_INCLUDEDIR)
# Before 1.0 a minor version may break the interface.
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/decant-config-version.cmake"
                                 COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/decant-config.cmake"
              "${CMAKE_CURRENT_BINARY_DIR}/decant-config-version.cmake" cmake/DecantDependencies.cmake
        DESTINATION ${decant_config_folder})
