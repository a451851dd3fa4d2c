// A shared library that has nothing to do with gputwin.
extern "C" int something_else() { return 42; }
