// Runs the chip under Verilator, driven from Python through ctypes: feeds the streams, plays the host's memory.
//
// An argument lies at its number times 2^36, so that every place says whose byte it is. Requests may reach past an
// argument's end, as the last piece of a run may; such bytes read as 0xA5. Writes must not.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "Vtop.h"
#include "verilated.h"

namespace {

constexpr int kArgumentBits = 36, kStreams = 4;

struct Answer {
  unsigned char bytes[64];
};
struct Write {
  uint64_t at;
  uint64_t mask;
  unsigned char bytes[64];
};

struct Chip {
  VerilatedContext context;
  Vtop top{&context};
  int bus, latency;
  std::vector<Answer> answers;  // a ring: what was asked for `latency` cycles ago is answered now
  std::vector<Write> writes;    // likewise what becomes visible now
  char error[200];

  Chip(int bus, int latency) : bus(bus), latency(latency), answers(latency), writes(latency) {}
};

// A port has 32, 64 or more bits; all lie in memory with the lowest byte first.
template <typename Port>
void put(Port& port, const void* from) {
  memcpy(&port, from, sizeof port);
}

}  // namespace

extern "C" {

void* chip_new(int bus, int latency) { return new Chip(bus, latency); }
void chip_free(void* chip) { delete static_cast<Chip*>(chip); }
const char* chip_error(void* chip) { return static_cast<Chip*>(chip)->error; }

// Runs a program: streams of `counts` instructions of `widths` bytes. Gives the cycles, or -1 and an error's text.
int64_t chip_run(void* handle, const unsigned char** streams, const uint32_t* counts, const uint32_t* widths,
                 unsigned char** arguments, const uint64_t* sizes, int argument_count, int64_t limit,
                 uint32_t* finished, int count_bits) {
  Chip& chip = *static_cast<Chip*>(handle);
  Vtop& top = chip.top;
  auto tick = [&] {
    top.clk = 0;
    top.eval();
    top.clk = 1;
    top.eval();
  };
  for (auto& w : chip.writes) w.mask = 0;
  snprintf(chip.error, sizeof chip.error, "%s", "");

  top.run = 0;
  top.stream_valid = 0;
  top.set_base = 0;
  top.reset = 1;
  tick();
  top.reset = 0;
  for (int a = 0; a < argument_count; a++) {
    top.set_base = 1;
    top.set_argument = a;
    top.set_address = uint64_t(a) << kArgumentBits;
    tick();
  }
  top.set_base = 0;
  unsigned char total[16] = {};
  for (int s = 0; s < kStreams; s++)
    for (int b = 0; b < count_bits; b++)
      if (counts[s] >> b & 1) total[(s * count_bits + b) / 8] |= 1 << (s * count_bits + b) % 8;
  put(top.total, total);

  uint32_t next[kStreams] = {};
  const auto feed = [&](int s, auto& port) {
    if (next[s] < counts[s]) {
      put(port, streams[s] + size_t(next[s]) * widths[s]);
      top.stream_valid |= 1 << s;
    }
  };
  // two cycles to fill the prefetch, then the kernel
  for (int64_t cycle = -2;; cycle++) {
    top.run = cycle >= 0;
    top.stream_valid = 0;
    feed(0, top.stream_load);
    feed(1, top.stream_store);
    feed(2, top.stream_array);
    feed(3, top.stream_post);
    const size_t slot = size_t(cycle + 2) % size_t(chip.latency);
    put(top.answer, chip.answers[slot].bytes);
    top.clk = 0;
    top.eval();
    if (cycle >= 0 && top.done) break;
    if (cycle > limit) {
      snprintf(chip.error, sizeof chip.error, "not done after %lld cycles", (long long)limit);
      return -1;
    }
    for (int s = 0; s < kStreams; s++)
      if (top.stream_valid >> s & top.stream_ready >> s & 1) next[s]++;

    // the host's memory: first what was written becomes visible
    Write& w = chip.writes[slot];
    for (int b = 0; b < chip.bus; b++)
      if (w.mask >> b & 1) {
        const uint64_t a = (w.at + b) >> kArgumentBits, at = (w.at + b) & ((uint64_t(1) << kArgumentBits) - 1);
        if (a >= uint64_t(argument_count) || at >= sizes[a]) {
          snprintf(chip.error, sizeof chip.error, "a write to byte %llu of argument %llu", (unsigned long long)at,
                   (unsigned long long)a);
          return -1;
        }
        arguments[a][at] = w.bytes[b];
      }
    w.mask = top.write;
    w.at = top.write_at;
    memcpy(w.bytes, &top.write_data, chip.bus);
    if (top.request)
      for (int b = 0; b < chip.bus; b++) {
        const uint64_t a = (top.request_at + b) >> kArgumentBits;
        const uint64_t at = (top.request_at + b) & ((uint64_t(1) << kArgumentBits) - 1);
        const bool inside = a < uint64_t(argument_count) && at < sizes[a];
        chip.answers[slot].bytes[b] = inside ? arguments[a][at] : 0xA5;
      }
    top.clk = 1;
    top.eval();
  }
  for (int s = 0; s < kStreams; s++) {
    finished[s] = 0;
    for (int b = 0; b < count_bits; b++) {
      const int bit = s * count_bits + b;
      finished[s] |= (reinterpret_cast<const unsigned char*>(&top.finished)[bit / 8] >> bit % 8 & 1u) << b;
    }
  }
  return int64_t(top.cycles);
}
}
