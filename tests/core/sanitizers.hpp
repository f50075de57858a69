// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `DECANT_TEST_SANITIZED`: the build keeps shadow memory, so that what a process uses and may reserve says little.

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DECANT_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define DECANT_TEST_SANITIZED 1
#endif
#endif
#if !defined(DECANT_TEST_SANITIZED)
#define DECANT_TEST_SANITIZED 0
#endif
