// systolic32: four engines, each with its stream of instructions, and the memories between them.
//
//   host --load--> weights, activations, params                  outputs --store--> host
//   weights, activations --array--> accumulators --post (with params)--> outputs
//
// Sizes come from the package `formats`, which is made from the chip's description; N, BUS and memories follow it.
//
// To run a kernel: `reset` for a cycle; write the places of its arguments; feed the streams; then `run` until `done`.
// The host's memory answers a request (BUS bytes from any byte on) BUS_LATENCY cycles later, and has what is written as
// late.
module top #(
    parameter int N = formats::ARRAY,
    parameter int BUS = formats::BUS,
    parameter int COUNT = formats::COUNT_BITS,
    parameter int ADDRESS = 40
) (
    input  logic clk,
    input  logic reset,
    input  logic run,
    output logic done,
    output logic [47:0] cycles,

    // where arguments lie
    input logic set_base,
    input logic [$clog2(formats::ARGUMENTS)-1:0] set_argument,
    input logic [ADDRESS-1:0] set_address,

    // streams of instructions: valid and ready together hand one over
    input  logic [           3:0] stream_valid,
    output logic [           3:0] stream_ready,
    input  logic [formats::LOAD_WIDTH-1:0] stream_load,
    input  logic [formats::STORE_WIDTH-1:0] stream_store,
    input  logic [formats::ARRAY_WIDTH-1:0] stream_array,
    input  logic [formats::POST_WIDTH-1:0] stream_post,
    input  logic [4*COUNT-1:0] total,
    output logic [4*COUNT-1:0] finished,

    // the host's memory
    output logic request,
    output logic [ADDRESS-1:0] request_at,
    input logic [8*BUS-1:0] answer,
    output logic [BUS-1:0] write,
    output logic [ADDRESS-1:0] write_at,
    output logic [8*BUS-1:0] write_data
);
  // ---- streams ----
  logic [3:0] valid, go, take, finish;
  formats::load_copy_t next_load;
  formats::store_copy_t next_store;
  formats::array_mma_t next_array;
  formats::post_requantize_t next_post;

  prefetch #(
      .WIDTH(formats::LOAD_WIDTH)
  ) of_load (
      .clk,
      .reset,
      .in_valid(stream_valid[0]),
      .in_data(stream_load),
      .in_ready(stream_ready[0]),
      .valid(valid[0]),
      .next(next_load),
      .take(take[0])
  );
  prefetch #(
      .WIDTH(formats::STORE_WIDTH)
  ) of_store (
      .clk,
      .reset,
      .in_valid(stream_valid[1]),
      .in_data(stream_store),
      .in_ready(stream_ready[1]),
      .valid(valid[1]),
      .next(next_store),
      .take(take[1])
  );
  prefetch #(
      .WIDTH(formats::ARRAY_WIDTH)
  ) of_array (
      .clk,
      .reset,
      .in_valid(stream_valid[2]),
      .in_data(stream_array),
      .in_ready(stream_ready[2]),
      .valid(valid[2]),
      .next(next_array),
      .take(take[2])
  );
  prefetch #(
      .WIDTH(formats::POST_WIDTH)
  ) of_post (
      .clk,
      .reset,
      .in_valid(stream_valid[3]),
      .in_data(stream_post),
      .in_ready(stream_ready[3]),
      .valid(valid[3]),
      .next(next_post),
      .take(take[3])
  );
  sequencer order (
      .clk,
      .reset,
      .run,
      .valid,
      .next_load,
      .next_store,
      .next_array,
      .next_post,
      .take,
      .finish,
      .go,
      .total,
      .finished,
      .done,
      .cycles
  );

  // ---- arguments ----
  logic [ADDRESS-1:0] bases[formats::ARGUMENTS];
  always_ff @(posedge clk) if (set_base) bases[set_argument] <= set_address;

  // ---- engines and memories ----
  logic [N-1:0] write_weights, write_activations;
  logic [4*N-1:0] write_params;
  logic [formats::LOAD_COPY_AT-1:0] loaded_word;
  logic [8*BUS-1:0] loaded;
  logic [formats::WEIGHTS_AT-1:0] weights_at;
  logic [8*N-1:0] weights;
  logic [formats::ACTIVATIONS_AT-1:0] activations_at;
  logic [8*N-1:0] activations;
  logic [formats::PARAMS_AT-1:0] params_at;
  logic [32*N-1:0] params;
  logic [formats::ACCUMULATORS_AT-1:0] acc_at;
  logic [32*N-1:0] acc;
  logic [N-1:0] write_outputs;
  logic [formats::OUTPUTS_AT-1:0] outputs_at, stored_at;
  logic [8*N-1:0] outputs, stored;

  load #(
      .N(N),
      .ADDRESS(ADDRESS),
      .LATENCY(formats::BUS_LATENCY)
  ) load_engine (
      .clk,
      .reset,
      .next(next_load),
      .go(go[0]),
      .base(bases[next_load.arg]),
      .take(take[0]),
      .finish(finish[0]),
      .request,
      .request_at,
      .answer,
      .write_weights,
      .write_activations,
      .write_params,
      .word(loaded_word),
      .data(loaded)
  );
  store #(
      .N(N),
      .ADDRESS(ADDRESS),
      .LATENCY(formats::BUS_LATENCY)
  ) store_engine (
      .clk,
      .reset,
      .next(next_store),
      .go(go[1]),
      .base(bases[next_store.arg]),
      .take(take[1]),
      .finish(finish[1]),
      .read_at(stored_at),
      .read_data(stored),
      .write,
      .write_at,
      .write_data
  );
  array #(
      .N(N)
  ) array_engine (
      .clk,
      .reset,
      .next(next_array),
      .go(go[2]),
      .take(take[2]),
      .finish(finish[2]),
      .weights_at,
      .weights,
      .activations_at,
      .activations,
      .read_at(acc_at),
      .read_data(acc)
  );
  post #(
      .N(N)
  ) post_engine (
      .clk,
      .reset,
      .next(next_post),
      .go(go[3]),
      .take(take[3]),
      .finish(finish[3]),
      .params_at,
      .params,
      .acc_at,
      .acc,
      .write(write_outputs),
      .write_at(outputs_at),
      .write_data(outputs)
  );

  // one memory for each piece of a word, as wide as the bus
  for (genvar p = 0; p < N / BUS; p++) begin : narrow
    ram #(
        .BYTES(BUS),
        .WORDS(formats::WEIGHTS_WORDS)
    ) weights_memory (
        .clk,
        .write(write_weights[p*BUS+:BUS]),
        .write_at(loaded_word[formats::WEIGHTS_AT-1:0]),
        .write_data(loaded),
        .read_at(weights_at),
        .read_data(weights[8*p*BUS+:8*BUS])
    );
    ram #(
        .BYTES(BUS),
        .WORDS(formats::ACTIVATIONS_WORDS)
    ) activations_memory (
        .clk,
        .write(write_activations[p*BUS+:BUS]),
        .write_at(loaded_word[formats::ACTIVATIONS_AT-1:0]),
        .write_data(loaded),
        .read_at(activations_at),
        .read_data(activations[8*p*BUS+:8*BUS])
    );
    ram #(
        .BYTES(BUS),
        .WORDS(formats::OUTPUTS_WORDS)
    ) outputs_memory (
        .clk,
        .write(write_outputs[p*BUS+:BUS]),
        .write_at(outputs_at),
        .write_data(outputs[8*p*BUS+:8*BUS]),
        .read_at(stored_at),
        .read_data(stored[8*p*BUS+:8*BUS])
    );
  end
  for (genvar p = 0; p < 4 * N / BUS; p++) begin : wide
    ram #(
        .BYTES(BUS),
        .WORDS(formats::PARAMS_WORDS)
    ) params_memory (
        .clk,
        .write(write_params[p*BUS+:BUS]),
        .write_at(loaded_word[formats::PARAMS_AT-1:0]),
        .write_data(loaded),
        .read_at(params_at),
        .read_data(params[8*p*BUS+:8*BUS])
    );
  end
endmodule
