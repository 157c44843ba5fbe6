# The libraries that data preparation stands on, as imported targets tera_text::NAME: simdjson (lines of JSON), zstd and
# zlib (compressed input), pcre2 (split patterns of tokenizers), sentencepiece. Found by header and library alone, since
# not every distribution ships CMake files for them. Included by the build and by the installed package.
function(tera_text_library name header library)
  if(TARGET tera_text::${name})
    return()
  endif()
  find_path(TERA_${name}_INCLUDE_DIR ${header})
  find_library(TERA_${name}_LIBRARY ${library})
  mark_as_advanced(TERA_${name}_INCLUDE_DIR TERA_${name}_LIBRARY)
  if(NOT TERA_${name}_INCLUDE_DIR OR NOT TERA_${name}_LIBRARY)
    message(FATAL_ERROR "${name} was not found (${header}, lib${library}); scripts/bootstrap installs it")
  endif()
  add_library(tera_text::${name} UNKNOWN IMPORTED)
  set_target_properties(tera_text::${name} PROPERTIES IMPORTED_LOCATION ${TERA_${name}_LIBRARY}
                                                      INTERFACE_INCLUDE_DIRECTORIES ${TERA_${name}_INCLUDE_DIR})
endfunction()

tera_text_library(simdjson simdjson.h simdjson)
tera_text_library(zstd zstd.h zstd)
tera_text_library(zlib zlib.h z)
tera_text_library(pcre2 pcre2.h pcre2-8)
tera_text_library(sentencepiece sentencepiece_processor.h sentencepiece)
