// Messages between ranks on one host, through memory that they share. Each rank owns a file in memory: a control area,
// then blocks, one for each message that somebody has yet to take. A sender copies what is for others into a block and
// publishes its number; a receiver waits for that number and copies its part out. Nothing runs in a thread.
//
// A sender never waits: a message that no free block can hold gets a new one. So ranks may take messages in any order,
// and late. The file has no name, so nothing is left of it after a crash; the others hold it open, so what a rank has
// sent can be taken after its end.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace hybridrec {

class HostExchange {
 public:
  // Memory of this rank. A channel has numbers of its own: messages of one may be sent and taken while others are.
  HostExchange(int rank, int world, int channels, double timeout);
  ~HostExchange();
  HostExchange(const HostExchange&) = delete;
  HostExchange& operator=(const HostExchange&) = delete;

  // What others need to find this rank.
  int64_t process() const;
  int file() const { return file_; }
  uint64_t token() const { return token_; }

  // Open the memory of all ranks. Throws where that cannot be had, as it is in containers apart.
  void meet(const std::vector<int64_t>& processes, const std::vector<int>& files, const std::vector<uint64_t>& tokens);

  // Send to[r] bytes to each rank r, which lie one after the other; returns the number of the message, from 1.
  uint64_t post(int channel, const uint8_t* message, const std::vector<int64_t>& to);

  // Whether all ranks have sent that message.
  bool ready(int channel, uint64_t number) const;

  // Copy of[r] bytes from each other rank to where they belong in `received`, once they are there: bytes of ranks lie
  // one after the other, and those of this rank are left alone. Each message is taken once.
  void take(int channel, uint64_t number, uint8_t* received, const std::vector<int64_t>& of);

  // Bytes of blocks that this rank has now.
  int64_t held() const;

 private:
  struct Mapping;
  struct Control;
  struct Line;
  struct Block;
  struct Sending;
  struct Peer;

  Line& line(Control& control, int channel) const;
  Block& free_block(Sending& sending, int64_t bytes);
  std::unique_ptr<Block> new_block(int64_t bytes);
  void wait_for(int channel, uint64_t number);
  void check_alive(int channel, uint64_t number) const;
  void give_up(int channel, uint64_t number) const;
  std::vector<int> absent(int channel, uint64_t number, bool gone) const;
  void copy_from(int rank, int channel, uint64_t number, uint8_t* to, int64_t bytes);

  const int rank_, world_, channels_;
  const double timeout_;
  int file_ = -1;
  uint64_t token_ = 0;
  mutable std::mutex growing_;  // of the file
  int64_t end_ = 0, held_ = 0;
  std::unique_ptr<Mapping> own_;
  std::vector<std::unique_ptr<Sending>> sending_;  // by channel
  std::vector<std::unique_ptr<Peer>> peers_;       // by rank; none for this one
};

}  // namespace hybridrec
