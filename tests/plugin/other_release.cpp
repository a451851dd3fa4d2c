// A plugin of a release that never was: it must be refused before its plugin function is called.
#include <cstdlib>

extern "C" const char* gputwin_plugin_stamp() { return "gputwin 0.0.1, plugin ABI 0"; }
extern "C" const void* gputwin_plugin() { std::abort(); }
