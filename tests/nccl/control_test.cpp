// The control plane, over which ranks exchange what is no tensor: gathers, splits, reports of ranks that did not come,
// and the end.

#include "tera/comm/control/control.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <thread>

#include "tera/backend/cpu/cpu_ops.h"
#include "tera/comm/comm.h"
#include "tera/comm/control/run_process.h"
#include "tera/comm/nccl/gpu_ids.h"
#include "tests/parallel/stub_comm.h"
#include "tests/support/count_allocations.h"
#include "tests/support/expect_error.h"

namespace tera::test {
namespace {

using namespace control;
using namespace nccl;
using namespace std::chrono_literals;

struct Reports {
  std::vector<std::string> lines, errors;  // by rank; an error is what the body threw
  std::vector<JobEnd> ends{};              // by rank
};

// Links as they are after a rendezvous.
std::vector<Links> make_links(int ranks) {
  std::vector<Links> links(static_cast<std::size_t>(ranks));
  for (Links& one : links) {
    auto [own, coordinators] = connected_pair();
    one.to_coordinator = Link(std::move(own), Link::max_gathered);
    links.front().to_ranks.emplace_back(std::move(coordinators), Link::max_payload);
  }
  return links;
}

// Runs ranks as threads, each with a connection of its own, as after a rendezvous.
Reports run_ranks(int ranks, std::chrono::milliseconds timeout, const std::function<void(Control&)>& body) {
  std::vector<Links> links = make_links(ranks);
  Reports reports{.lines = std::vector<std::string>(links.size()),
                  .errors = std::vector<std::string>(links.size()),
                  .ends = std::vector<JobEnd>(links.size())};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      const auto at = static_cast<std::size_t>(rank);
      std::string thread_report;  // reports of a rank that was slow to leave
      {
        const auto report = [&](std::string_view line) { thread_report += std::string(line) + "\n"; };
        Control control(std::move(links[at]), {.rank = rank, .size = ranks, .timeout = timeout, .shutdown_grace = 60s},
                        report);
        std::string fault;
        try {
          body(control);
        } catch (const CommAborted& error) {
          reports.errors[at] = error.what();
        } catch (const std::exception& error) {
          reports.errors[at] = fault = error.what();
        }
        reports.ends[at] = control.leave(fault, !reports.errors[at].empty());
        for (const std::string& line : reports.ends[at].lines) reports.lines[at] += line + "\n";
        control.await_reports();
      }
      const std::string name = fmt::format("rank {}: ", rank);
      if (!thread_report.empty()) reports.lines[at] += thread_report.substr(name.size());
    });
  for (std::thread& thread : threads) thread.join();
  return reports;
}

void barrier(Control& control, ControlGroup& group) { control.gather(group, {.kind = CallKind::barrier}, {}, {}); }

std::vector<int> gather_ints(Control& control, ControlGroup& group, int own) {
  std::vector<int> all(group.members.size());
  control.gather(group, {.kind = CallKind::split}, std::as_bytes(std::span(&own, 1)),
                 std::as_writable_bytes(std::span(all)));
  return all;
}

TEST(Control, GathersInTheOrderOfTheGroup) {
  for (int ranks : {1, 2, 5}) {
    const Reports reports = run_ranks(ranks, 30s, [&](Control& control) {
      ControlGroup world = control.world();
      std::vector<int> expected(static_cast<std::size_t>(ranks));
      for (int round = 0; round < 200; ++round) {
        std::iota(expected.begin(), expected.end(), round);
        ASSERT_EQ(gather_ints(control, world, round + control.rank()), expected);
      }
      barrier(control, world);
    });
    for (const std::string& error : reports.errors) EXPECT_EQ(error, "");
    for (const std::string& line : reports.lines) EXPECT_EQ(line, "");
  }
}

// The payload is that of ten thousand ranks with a few bytes each.
TEST(Control, GathersMuch) {
  constexpr std::size_t each = 100'000;
  const Reports reports = run_ranks(16, 30s, [&](Control& control) {
    ControlGroup world = control.world();
    for (int round = 0; round < 3; ++round) {
      const std::vector<std::byte> own(each, static_cast<std::byte>(control.rank() + round));
      std::vector<std::byte> all(16 * each);
      control.gather(world, {.kind = CallKind::split}, own, all);
      for (std::size_t i = 0; i < all.size(); i += 9973)
        ASSERT_EQ(all[i], static_cast<std::byte>(static_cast<int>(i / each) + round)) << i;
    }
  });
  for (const std::string& error : reports.errors) EXPECT_EQ(error, "");
  const Reports too_much = run_ranks(2, 30s, [&](Control& control) {
    ControlGroup world = control.world();
    const std::vector<std::byte> own(Link::max_payload);
    std::vector<std::byte> all(2 * own.size());
    control.gather(world, {.kind = CallKind::split}, own, all);
  });
  EXPECT_TRUE(contains(too_much.errors[0], "2 ranks gather 2097152 bytes, 1048576 of each")) << too_much.errors[0];
}

TEST(Control, TakesFromTheFirst) {
  const Reports reports = run_ranks(5, 30s, [&](Control& control) {
    ControlGroup world = control.world();
    ControlGroup others = control.split(world, control.rank() == 1 ? 1 : 0, -control.rank(), "others");
    for (int round = 0; round < 5; ++round) {
      int number = 100 * round + control.rank();
      control.broadcast_from_first(others, {.kind = CallKind::split}, std::as_writable_bytes(std::span(&number, 1)));
      EXPECT_EQ(number, 100 * round + (control.rank() == 1 ? 1 : 4));
    }
  });
  for (const std::string& error : reports.errors) EXPECT_EQ(error, "");
}

TEST(Control, SplitsByColorAndKey) {
  run_ranks(6, 30s, [&](Control& control) {
    ControlGroup world = control.world();
    const int me = control.rank();
    ControlGroup half = control.split(world, me % 2, -me, "half");
    EXPECT_EQ(half.members, (me % 2 == 0 ? std::vector{4, 2, 0} : std::vector{5, 3, 1}));
    EXPECT_EQ(half.members[static_cast<std::size_t>(half.rank)], me);
    EXPECT_EQ(half.name, "half");
    for (int round = 0; round < 10 * (1 + me % 2); ++round)  // groups work side by side
      EXPECT_EQ(gather_ints(control, half, me), half.members);
    ControlGroup one = control.split(half, me, 0, "one");
    EXPECT_EQ(one.members, std::vector{me});
    barrier(control, one);
    barrier(control, world);
  });
}

// A second thread of a rank gets an error, and the first goes on.
TEST(Control, OneThreadOfARankCallsAtATime) {
  std::string refusal;
  const Reports reports = run_ranks(2, 30s, [&](Control& control) {
    ControlGroup world = control.world(), other = control.world();
    if (control.rank() == 1) std::this_thread::sleep_for(500ms);
    std::thread second([&] {
      if (control.rank() == 1) return;
      std::this_thread::sleep_for(200ms);
      refusal = message_of<Error>([&] { gather_ints(control, other, 5); });
    });
    EXPECT_EQ(gather_ints(control, world, control.rank()), (std::vector{0, 1}));
    second.join();
  });
  EXPECT_TRUE(contains(refusal, "two threads of a rank join, split or meet at once")) << refusal;
  for (const std::string& error : reports.errors) EXPECT_EQ(error, "");
}

TEST(Control, AFaultIsReportedByItsRankAndEndsTheOthers) {
  const Reports reports = run_ranks(4, 30s, [&](Control& control) {
    ControlGroup world = control.world();
    barrier(control, world);
    if (control.rank() == 2) throw Error("the disk is full");
    barrier(control, world);
  });
  EXPECT_EQ(reports.lines, (std::vector<std::string>{"", "", "the disk is full\n", ""}));
  EXPECT_TRUE(contains(reports.errors[1], "world: barrier on rank 1 ended because rank 2 failed: the disk is full"))
      << reports.errors[1];
}

TEST(Control, TheSameFaultIsReportedOnceAndOthersAsWell) {
  const Reports same = run_ranks(3, 30s, [](Control&) { throw UserError("train.seed=x: not a number"); });
  EXPECT_EQ(same.lines, (std::vector<std::string>{"train.seed=x: not a number\n", "", ""}));
  const Reports two = run_ranks(3, 30s, [](Control& control) {
    if (control.rank() > 0) throw Error(fmt::format("fault {}", control.rank()));
  });
  EXPECT_EQ(two.lines, (std::vector<std::string>{"", "fault 1\n", "fault 2\n"}));
}

TEST(Control, WhoDoesNotComeIsNamedWithWhatItDoes) {
  const Reports reports = run_ranks(3, 400ms, [](Control& control) {
    ControlGroup world = control.world();
    ControlGroup tp = control.split(world, 0, 0, "tp");
    Call call{.kind = CallKind::all_gather, .elements = 2};
    control.note_call(tp, call);
    if (control.rank() == 1) {
      std::this_thread::sleep_for(1s);  // it has called what it has, and does not come to the next
      return;
    }
    barrier(control, tp);
  });
  const std::string text = reports.lines[0] + reports.lines[2];
  EXPECT_TRUE(
      contains(text, "waited 0.4 s: rank 1 did not come (rank 1 last did all_gather f32 x 2 of tp, its call 2)"))
      << text;
}

// Calls on the GPU are counted, so that ranks that made them are not named.
TEST(Control, ThoseWhoCameAreNotNamed) {
  std::string answer;
  run_ranks(4, 30s, [&](Control& control) {
    ControlGroup world = control.world();
    const int calls = control.rank() == 2 ? 4 : 5;
    for (int i = 0; i < calls; ++i) control.note_call(world, {.kind = CallKind::all_reduce, .elements = 7});
    std::this_thread::sleep_for(700ms);  // until all have said so
    if (control.rank() == 0) answer = control.query_absent(world, world.members, 5);
    barrier(control, world);
  });
  EXPECT_EQ(answer, "rank 2 did not come (rank 2 last did all_reduce sum f32 x 7 of world, its call 4)");
}

// Nobody counts the ranks that came to an exchange, and all may have come to a collective while the GPU waits: in both
// cases no rank is reported as missing.
TEST(Control, ThoseWhoMayHaveComeAreNotSaidNotToHave) {
  std::string exchange, collective;
  run_ranks(3, 30s, [&](Control& control) {
    ControlGroup world = control.world(), pp = control.split(world, 0, 0, "pp");
    control.note_call(pp, {.kind = CallKind::all_reduce, .elements = 7});
    control.note_call(pp, {.kind = CallKind::exchange, .elements = 10});
    std::this_thread::sleep_for(700ms);  // until all have said so
    if (control.rank() == 1) {
      exchange = control.query_absent(pp, std::vector{0, 2}, Control::any_call);
      collective = control.query_absent(pp, std::vector{0, 1}, 1);
    }
    barrier(control, pp);
  });
  EXPECT_EQ(
      exchange,
      "it waits for ranks 0, 2 (rank 0 last did exchange of 10 elements of pp, its call 3; rank 2 last did exchange "
      "of 10 elements of pp, its call 3)");
  EXPECT_EQ(collective, "it waits for rank 0 (rank 0 last did exchange of 10 elements of pp, its call 3)");
}

TEST(Control, DifferentCallsAreReportedOnce) {
  const Reports reports = run_ranks(3, 30s, [](Control& control) {
    ControlGroup world = control.world();
    if (control.rank() == 1)
      gather_ints(control, world, 0);
    else
      barrier(control, world);
  });
  EXPECT_EQ(reports.lines[0],
            "world: the ranks make different calls: rank 0: barrier; rank 1: split; rank 2: barrier\n");
  EXPECT_EQ(reports.lines[1] + reports.lines[2], "");
}

// Rank 1 ended between the rendezvous and the coordinator's first poll.
TEST(Control, AConnectionThatWasClosedFromTheStart) {
  auto [own, coordinators] = connected_pair();
  Links links{.to_coordinator = Link(std::move(own), Link::max_gathered), .to_ranks = {}};
  links.to_ranks.emplace_back(std::move(coordinators), Link::max_payload);
  links.to_ranks.emplace_back();
  const auto report = [](std::string_view) {};
  Control control(std::move(links), {.rank = 0, .size = 2, .timeout = 5s, .shutdown_grace = 60s}, report);
  ControlGroup world = control.world();
  const std::string message = message_of<CommError>([&] { barrier(control, world); });
  EXPECT_TRUE(contains(message, "rank 1 is gone: its connection was closed, as when it is killed")) << message;
  const JobEnd end = control.leave({}, true);
  EXPECT_EQ(end.lines, std::vector<std::string>{"rank 1 is gone: its connection was closed, as when it is killed"});
  EXPECT_FALSE(end.in_order);
  EXPECT_TRUE(end.kills);
}

// The coordinator's next frame that is no heartbeat.
std::optional<Frame> next_news(Link& link) {
  for (const auto deadline = Clock::now() + 10s; Clock::now() < deadline;)
    if (auto frame = wait_for_frame(link, deadline); frame && frame->kind != FrameKind::heartbeat) return frame;
  return std::nullopt;
}

// The coordinator buffers a limited number of bytes for a rank. A rank that exceeds it is lost, whoever sent the bytes.
TEST(Control, ARankThatReadsNothingIsLost) {
  auto [local_0, coordinators_0] = connected_pair();
  auto [local_1, coordinators_1] = connected_pair();
  std::vector<Link> to_ranks;
  to_ranks.emplace_back(std::move(coordinators_0), Link::max_payload);
  to_ranks.emplace_back(std::move(coordinators_1), Link::max_payload);
  const Coordinator coordinator(std::move(to_ranks), 60s);
  Link zero(std::move(local_0), Link::max_gathered), one(std::move(local_1), Link::max_gathered);
  const std::vector<std::byte> much(1'000'000);
  const auto deliver = [&](Link& link, std::uint64_t round, int rank, std::span<const std::byte> bytes) {
    Packer part;
    part.put(std::uint64_t{1}).put(round).put(std::int32_t{2}).put(std::int32_t{rank});
    link.send(FrameKind::gather, part.put(Call{}).put(std::uint8_t{1}).put_bytes(bytes).bytes());
    link.pump();
  };
  constexpr std::uint64_t rounds = 80;
  for (std::uint64_t round = 0; round < rounds; ++round) deliver(one, round, 1, {});
  std::this_thread::sleep_for(200ms);  // until the coordinator has them
  std::optional<Frame> news;
  for (std::uint64_t round = 0; round < rounds && (!news || news->kind == FrameKind::gathered); ++round) {
    deliver(zero, round, 0, much);
    news = next_news(zero);
  }
  while (news && news->kind == FrameKind::gathered) news = next_news(zero);
  ASSERT_TRUE(news.has_value()) << "nobody noticed";
  EXPECT_EQ(news->kind, FrameKind::failed);
  Unpacker payload(news->payload);
  EXPECT_EQ(payload.get<std::int32_t>(), 1);
  EXPECT_EQ(payload.get<std::uint8_t>(), 1) << "it is lost";
  EXPECT_TRUE(contains(payload.get_text(), "rank 1 does not read what it is sent"));
}

TEST(Control, TwoRanksOnOneGpuAreReportedOnce) {
  const auto check = [](std::string no_local_rank, auto id_of) {
    return run_ranks(4, 30s, [&](Control& control) {
      ControlGroup world = control.world();
      check_gpu_ids(control, world, id_of(control.rank()), {.name = "H200", .no_local_rank = no_local_rank});
    });
  };
  const auto gpu = [](int number, std::uint64_t machine) {
    return GpuId{.gpu = {static_cast<char>(number)}, .machine = machine};
  };
  const Reports fine = check("LOCAL_RANK", [&](int rank) { return gpu(rank, 0); });
  const Reports machines = check("LOCAL_RANK", [&](int rank) { return gpu(0, static_cast<std::uint64_t>(rank)); });
  for (const Reports& reports : {fine, machines}) EXPECT_EQ(reports.errors, std::vector<std::string>(4));
  const Reports two = check("", [&](int rank) { return gpu(rank == 3 ? 1 : rank, 0); });
  EXPECT_TRUE(contains(two.lines[0], "two ranks on one GPU: ranks 1 and 3 have the same H200; start no more processes"))
      << two.lines[0];
  EXPECT_EQ(two.lines[1] + two.lines[2] + two.lines[3], "");
  const Reports unknown = check("LOCAL_RANK", [&](int) { return gpu(0, 0); });
  EXPECT_TRUE(contains(unknown.lines[0], "ranks 0 and 1 have the same H200, as LOCAL_RANK is not set, which says"))
      << unknown.lines[0];
}

// The others get the reason, and do not take the rank for killed.
TEST(Control, ARankThatCannotJoin) {
  std::vector<Links> links = make_links(3);
  std::vector<std::string> errors(links.size()), reports(links.size());
  std::vector<int> statuses(links.size());
  const auto join = [](Control& control, Ops&) -> std::unique_ptr<Comm> {
    ControlGroup world = control.world();
    barrier(control, world);
    if (control.rank() == 1) throw Error("ncclCommInitRank: no memory");
    barrier(control, world);
    return std::make_unique<StubComm>(control.rank(), control.size());
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank)
    threads.emplace_back([&, rank] {
      const auto at = static_cast<std::size_t>(rank);
      const auto report = [&](std::string_view line) { reports[at] += line; };
      Control control(std::move(links[at]), {.rank = rank, .size = 3, .timeout = 5s, .shutdown_grace = 60s}, report);
      const auto body = [&](RankHandle& rank_handle) {
        cpu::CpuOps ops(1, cpu::best_isa());
        try {
          rank_handle.join(ops);
        } catch (const std::exception& error) {
          errors[at] = error.what();
          throw;
        }
      };
      statuses[at] = run_rank(control, body, report, join, [] { return true; }).status;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(errors[1], "ncclCommInitRank: no memory");
  for (std::size_t rank : {0, 2})
    EXPECT_TRUE(contains(errors[rank], "ended because rank 1 failed: ncclCommInitRank: no memory")) << errors[rank];
  EXPECT_EQ(reports, (std::vector<std::string>{"", "rank 1: ncclCommInitRank: no memory", ""}));
  EXPECT_EQ(statuses, (std::vector<int>{1, 1, 1}));
}

// Whether MPI_Finalize would return, and who kills the job where it would not. All ranks hear the same.
TEST(Control, HowTheJobEnded) {
  const auto ends_of = [](const std::function<void(Control&)>& body) { return run_ranks(3, 30s, body).ends; };
  for (const JobEnd& end : ends_of([](Control&) {})) EXPECT_TRUE(end.in_order);
  const auto failed = ends_of([](Control& control) {
    if (control.rank() == 1) throw Error("the disk is full");
  });
  for (const JobEnd& end : failed) EXPECT_TRUE(end.in_order) << "a fault, but all have left";
  const auto late = ends_of([](Control& control) {
    if (control.rank() == 1) throw Error("the disk is full");
    if (control.rank() == 2) std::this_thread::sleep_for(3s);  // longer than the coordinator waits
  });
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_FALSE(late[rank].in_order) << rank;
    EXPECT_EQ(late[rank].kills, rank == 0) << rank;
  }
  const auto late_first = ends_of([](Control& control) {
    if (control.rank() == 1) throw Error("the disk is full");
    if (control.rank() == 0) std::this_thread::sleep_for(3s);
  });
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_FALSE(late_first[rank].in_order) << rank;
    EXPECT_EQ(late_first[rank].kills, rank == 1) << rank;
  }
}

// How the job ended for ranks 0 and 1, where rank 2 says that it has left, and is killed or stopped while rank 0 works.
std::vector<JobEnd> ends_after_losing_rank_2(bool stopped) {
  std::vector<Links> links = make_links(3);
  Link& two = links[2].to_coordinator;
  two.send(FrameKind::bye, Packer().put(std::uint8_t{1}).put(std::uint8_t{0}).bytes());
  two.pump();
  if (!stopped) two.close();
  std::vector<JobEnd> ends(2);
  std::vector<std::thread> threads;
  for (int rank : {0, 1})
    threads.emplace_back([&, rank] {
      const auto at = static_cast<std::size_t>(rank);
      const auto report = [](std::string_view) {};
      Control control(std::move(links[at]), {.rank = rank, .size = 3, .timeout = 600ms, .shutdown_grace = 60s}, report);
      if (rank == 0) std::this_thread::sleep_for(1500ms);
      EXPECT_FALSE(control.failed()) << "the others do not need rank 2";
      ends[at] = control.leave({}, false);
      control.await_reports();
    });
  for (std::thread& thread : threads) thread.join();
  return ends;
}

// MPI_Finalize would wait for such a rank.
TEST(Control, ARankThatIsLostAfterItHasLeft) {
  const std::string killed = "rank 2 is gone: its connection was closed, as when it is killed, after its work was over",
                    stopped =
                        "rank 2 has not answered for 0.6 s: it is stopped, or its machine is, after its work was over";
  for (const std::string& reason : {killed, stopped}) {
    const std::vector<JobEnd> ends = ends_after_losing_rank_2(reason == stopped);
    for (const JobEnd& end : ends) EXPECT_FALSE(end.in_order) << reason;
    EXPECT_EQ(ends[0].lines, std::vector<std::string>{reason});
    EXPECT_EQ(ends[1].lines, std::vector<std::string>{});
  }
}

// A launcher may end all processes when the first one ends.
TEST(Control, NobodyEndsBeforeAllHaveReported) {
  std::vector<Links> links = make_links(3);
  std::atomic<int> reported{0};
  std::vector<int> seen(links.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank)
    threads.emplace_back([&, rank] {
      const auto at = static_cast<std::size_t>(rank);
      const auto report = [](std::string_view) {};
      Control control(std::move(links[at]), {.rank = rank, .size = 3, .timeout = 5s, .shutdown_grace = 60s}, report);
      EXPECT_EQ(control.leave(fmt::format("fault {}", rank), true).lines.size(), 1u);
      std::this_thread::sleep_for(150ms * rank);
      ++reported;
      control.await_reports();
      seen[at] = reported;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(seen, (std::vector<int>{3, 3, 3}));
}

// What heartbeats need is taken once: a training step allocates nothing, beside it neither.
TEST(Control, HeartbeatsAllocateNothing) {
  if (!can_count_allocations()) GTEST_SKIP() << "a sanitizer has its own allocator";
  std::int64_t allocations = -1;
  run_ranks(3, 600ms, [&](Control& control) {  // a heartbeat every 100 ms
    ControlGroup world = control.world(), dp = control.split(world, 0, 0, "dp");
    for (int i = 0; i < 3; ++i) control.note_call(dp, {.kind = CallKind::all_reduce, .elements = 7});
    std::this_thread::sleep_for(400ms);
    if (control.rank() == 0) start_counting_allocations();
    std::this_thread::sleep_for(control.rank() == 0 ? 400ms : 600ms);  // the next gather is not counted
    if (control.rank() == 0) allocations = stop_counting_allocations();
    barrier(control, world);
  });
  EXPECT_EQ(allocations, 0);
}

// A rank that is done waits for the others, which do not take it for lost.
TEST(Control, ARankMayEndBeforeTheOthers) {
  const Reports reports = run_ranks(3, 300ms, [](Control& control) {
    if (control.rank() == 2) std::this_thread::sleep_for(1s);
  });
  for (const std::string& line : reports.lines) EXPECT_EQ(line, "");
}

}  // namespace
}  // namespace tera::test
