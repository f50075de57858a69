// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
/// \file
/// A host whose system headers define short names as macros. The headers of others are included before this file.

#define min(a, b) (((a) < (b)) ? (a) : (b))
#define max(a, b) (((a) > (b)) ? (a) : (b))
#define near
#define far
#define small char
#define interface struct
#define ERROR 0
#define IN
#define OUT
#define DELETE 0x00010000L
#define TRUE 1
#define FALSE 0
#define None 0L
#define Bool int
#define Status int
#define Success 0
#define Always 2
#define check(x) ((void)(x))
#define verify(x) ((void)(x))
#define nil 0
#define I (1.0f)
#define B0 0
#define B1 1
#define F(text) (text)
#define DEBUG 1
#define Yes 1
#define No 0
#define emit
#define slots
#define signals public
#define foreach(a, b) for (a : b)

#include <decant/decant.hpp>
