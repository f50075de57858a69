// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
/// \file
/// A host whose system headers define short names as macros (case EH-10 of ../shared/cases). The headers of others are
/// included before this file.

#define min(a, b) (((a) < (b)) ? (a) : (b))
#define max(a, b) (((a) > (b)) ? (a) : (b))
#define near
#define far
#define small char
#define interface struct
#define ERROR 0
#define IN
#define OUT
#define OPTIONAL
#define NO_ERROR 0L
#define STRICT 1
#define DIFFERENCE 11
#define GetMessage GetMessageW
#define major(dev) ((int)((dev) >> 8))
#define minor(dev) ((int)((dev)&0xff))
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
