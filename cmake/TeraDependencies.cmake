set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
if(NOT TARGET yaml-cpp::yaml-cpp)  # the package of Debian 12 exports the name without a namespace
  add_library(yaml-cpp::yaml-cpp ALIAS yaml-cpp)
endif()
