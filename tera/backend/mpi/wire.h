#pragma once
// Every call to MPI, all on one thread. Small messages come and go by themselves, bytes of tensors when they are asked
// for; poll() says what has come since.

#include <mpi.h>

#include <memory>
#include <span>
#include <vector>

#include "tera/backend/mpi/message.h"

namespace tera::mpi {

struct Lane;
struct Task;

// A piece of a lane that has gone or come.
struct Moved {
  Task* task = nullptr;
  Lane* lane = nullptr;
  std::size_t bytes = 0;
  std::int64_t piece = 0;
};

class Wire {
 public:
  Wire();   // starts MPI
  ~Wire();  // ends it, together with all other ranks
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int ranks_here() const { return ranks_here_; }  // on this machine

  Message& take();  // to fill and send
  void send(int peer, Message& message, std::size_t payload_bytes);
  void give_back(Message& message);  // that has come

  // Bytes between two ranks come in the order in which they were sent, for each tag.
  int next_tag();
  void send_bytes(int peer, int tag, const std::byte* memory, const Moved& piece);
  void receive_bytes(int peer, int tag, std::byte* memory, const Moved& piece);

  bool poll();  // whether anything came or went
  std::span<Message* const> messages() const { return messages_; }
  std::span<const Moved> moved() const { return moved_; }

  // Nobody wants them any more. Those that cannot be taken back stay under way.
  void forget_bytes();
  std::size_t bytes_under_way() const;  // number of pieces
  bool sends_under_way() const;

  [[noreturn]] void kill_job(int status, bool launcher_kills);

 private:
  enum class What : std::uint8_t { message_in, message_out, bytes_in, bytes_out };
  struct Pending {
    What what;
    Message* message = nullptr;
    Moved moved;
  };
  void add(MPI_Request request, const Pending& pending);
  void receive_message();
  void complete(const Pending& pending, const MPI_Status& status);
  void make_messages(std::size_t count);

  int rank_ = 0, size_ = 0, ranks_here_ = 0, tag_ = 0;
  MPI_Comm messages_comm_ = MPI_COMM_NULL, bytes_comm_ = MPI_COMM_NULL;
  std::vector<std::unique_ptr<Message>> all_;
  std::vector<Message*> free_;
  std::vector<MPI_Request> requests_;
  std::vector<Pending> pending_;  // one of each request
  std::vector<int> completed_;
  std::vector<MPI_Status> statuses_;
  std::vector<Message*> messages_;
  std::vector<Moved> moved_;
};

}  // namespace tera::mpi
