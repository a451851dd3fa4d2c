#include "sim/trace/atomic_file.h"

#include <unistd.h>

#include <boost/iostreams/categories.hpp>
#include <boost/iostreams/filter/gzip.hpp>
#include <boost/iostreams/filtering_stream.hpp>
#include <fstream>
#include <string>
#include <system_error>

#include "sim/core/error.h"

namespace gputwin {

namespace {

// Level 1: traces repeat themselves so much that higher levels gain little and cost the
// simulation's time.
constexpr int kCompressionLevel = 1;
constexpr std::streamsize kBufferBytes = 1 << 18;

}  // namespace

struct AtomicFile::Stream {
  std::ofstream file;
  bool failed = false;
  boost::iostreams::filtering_ostream filtered;
};

namespace {

/// Passes bytes on and remembers whether one was lost: the chain of filters does not say so where
/// it writes its last bytes, on being closed.
struct FileSink {
  using char_type = char;
  using category = boost::iostreams::sink_tag;
  std::ofstream* file;
  bool* failed;
  std::streamsize write(const char* text, std::streamsize bytes) {
    if (!file->write(text, bytes)) *failed = true;
    return bytes;
  }
};

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)) {
  std::error_code error;
  // What a symbolic link points to is replaced, not the link; a device or folder is left alone.
  const std::filesystem::path target = std::filesystem::canonical(path_, error);
  if (!error) {
    path_ = target;
    if (!std::filesystem::is_regular_file(path_, error)) fail("is not a regular file");
  }
  error.clear();
  temporary_ = path_;
  temporary_ += ".partial-" + std::to_string(::getpid());
  if (path_.has_parent_path()) std::filesystem::create_directories(path_.parent_path(), error);
  if (error) fail("cannot be created: " + error.message());
  stream_ = std::make_unique<Stream>();
  stream_->file.open(temporary_, std::ios::binary | std::ios::trunc);
  if (!stream_->file) fail("cannot be created");
  if (path_.extension() == ".gz") {
    // No name and no time in the header, so that the same trace gives the same bytes.
    boost::iostreams::gzip_params parameters(kCompressionLevel);
    stream_->filtered.push(boost::iostreams::gzip_compressor(parameters, kBufferBytes));
  }
  stream_->filtered.push(FileSink{&stream_->file, &stream_->failed}, kBufferBytes);
}

AtomicFile::~AtomicFile() {
  if (!stream_) return;
  try {
    stream_.reset();
  } catch (...) {
    // Closing a full disk's file may fail; the file is dropped anyway.
  }
  std::error_code ignored;
  std::filesystem::remove(temporary_, ignored);
}

void AtomicFile::write(std::string_view text) {
  stream_->filtered.write(text.data(), static_cast<std::streamsize>(text.size()));
  if (!stream_->filtered || stream_->failed) fail("cannot be written, is the disk full?");
}

void AtomicFile::commit() {
  stream_->filtered.reset();  // flushes and ends the compressed stream
  stream_->file.close();
  if (!stream_->file || stream_->failed) fail("cannot be written, is the disk full?");
  std::error_code error;
  std::filesystem::rename(temporary_, path_, error);
  if (error) fail("cannot be put in place: " + error.message());
  stream_.reset();
}

void AtomicFile::fail(std::string_view problem) const {
  throw InputError(path_.string(), "", "", std::string(problem),
                   "name a file in a folder that you may write to");
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace gputwin
