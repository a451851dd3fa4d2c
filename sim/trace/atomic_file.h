// Files that appear whole or not at all.
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>

namespace gputwin {

/// A file written under a temporary name beside its own and renamed by commit(); without commit()
/// the temporary file is removed and whatever stood under the name stays. Compressed when it ends
/// in ".gz". Missing folders are created.
///
/// Fails   InputError naming the path, when the folder cannot be written or the disk is full.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::string_view text);
  void commit();
  const std::filesystem::path& path() const { return path_; }

 private:
  struct Stream;
  [[noreturn]] void fail(std::string_view problem) const;

  std::filesystem::path path_, temporary_;
  std::unique_ptr<Stream> stream_;
};

/// Puts `text` under the name `path`, as AtomicFile does.
void write_file(const std::filesystem::path& path, std::string_view text);

}  // namespace gputwin
