// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Everything but the optional parts. Hosts that want to compile less include the headers that they use.

#include <decant/backend/concept.hpp>
#include <decant/backend/eigen/eigen.hpp>
#include <decant/backend/simd/simd.hpp>
#include <decant/cache/frames.hpp>
#include <decant/cache/kv_cache.hpp>
#include <decant/core/adjustment.hpp>
#include <decant/core/best.hpp>
#include <decant/core/config.hpp>
#include <decant/core/executor.hpp>
#include <decant/core/memory.hpp>
#include <decant/core/processors.hpp>
#include <decant/core/progress.hpp>
#include <decant/core/result.hpp>
#include <decant/core/stop.hpp>
#include <decant/core/thread_pool.hpp>
#include <decant/core/token.hpp>
#include <decant/files/weights.hpp>
#include <decant/model/context.hpp>
#include <decant/model/cost.hpp>
#include <decant/model/model.hpp>
#include <decant/model/plan.hpp>
#include <decant/sample/log_probabilities.hpp>
#include <decant/sample/sampler.hpp>
#include <decant/sample/softmax.hpp>
#include <decant/sample/steps.hpp>
#include <decant/serve/engine.hpp>
#include <decant/serve/request.hpp>
#include <decant/text/chat.hpp>
#include <decant/text/stream.hpp>
#include <decant/text/tokenizer.hpp>
