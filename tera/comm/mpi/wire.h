#pragma once
// Every call to MPI, all on one thread: small messages, for which receives are always posted, and bytes of tensors,
// which are received on request; poll() returns what has completed.

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tera/comm/mpi/message.h"

namespace tera::mpi {

struct Lane;
struct Task;

// A piece of a lane that was sent or received.
struct MovedPiece {
  Task* task = nullptr;
  Lane* lane = nullptr;
  std::size_t bytes = 0;
  std::int64_t piece = 0;
};

class Wire {
 public:
  Wire();   // MPI_Init
  ~Wire();  // MPI_Finalize, together with all other ranks
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int ranks_on_machine() const { return ranks_on_machine_; }  // on this machine

  // At the start, made by all ranks.
  bool all_equal(std::uint64_t value) const;         // whether all ranks have the same
  void broadcast(std::span<std::byte> bytes) const;  // from rank 0

  Message& take();  // an empty one, to fill and send
  void send(int peer, Message& message, std::size_t payload_bytes);
  void release(Message& message);  // a received one

  // Bytes between two ranks arrive in the order in which they were sent, for each tag.
  int next_tag();
  void send_bytes(int peer, int tag, const std::byte* memory, const MovedPiece& piece);
  void receive_bytes(int peer, int tag, std::byte* memory, const MovedPiece& piece);

  bool poll();  // whether anything completed
  std::span<Message* const> messages() const { return messages_; }
  std::span<const MovedPiece> moved() const { return moved_; }

  // Cancels receives of bytes. Transfers that cannot be cancelled stay in flight.
  void cancel_transfers();
  std::size_t bytes_in_flight() const;  // number of pieces
  bool sends_in_flight() const;

  [[noreturn]] void kill_job(int status, bool launcher_kills);

 private:
  enum class What : std::uint8_t { message_in, message_out, bytes_in, bytes_out };
  struct Pending {
    What what;
    Message* message = nullptr;
    MovedPiece moved;
  };
  void add(MPI_Request request, const Pending& pending);
  void receive_message();
  void complete(const Pending& pending, const MPI_Status& status);
  void make_messages(std::size_t count);

  int rank_ = 0, size_ = 0, ranks_on_machine_ = 0, tag_ = 0;
  MPI_Comm messages_comm_ = MPI_COMM_NULL, bytes_comm_ = MPI_COMM_NULL;
  std::vector<std::unique_ptr<Message>> all_;
  std::vector<Message*> free_;
  std::vector<MPI_Request> requests_;
  std::vector<Pending> pending_;  // by request
  std::vector<int> completed_;
  std::vector<MPI_Status> statuses_;
  std::vector<Message*> messages_;
  std::vector<MovedPiece> moved_;
};

}  // namespace tera::mpi
