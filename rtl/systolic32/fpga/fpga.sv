// systolic32 with as few pins as an FPGA has: instructions, places of arguments and lengths of streams come in words of
// 32 bits through one port, the lowest word of each first.
//
// `to` says what a word belongs to: 0 to 3 the streams of load, store, array and post, 4 the argument `argument`, 5 the
// lengths of the streams. `ready`: streams that can take a word.
module fpga #(
    parameter int ADDRESS = 32
) (
    input logic clk,
    input logic reset,
    input logic run,
    output logic done,

    input logic valid,
    input logic [2:0] to,
    input logic [$clog2(formats::ARGUMENTS)-1:0] argument,
    input logic [31:0] word,
    output logic [3:0] ready,

    output logic request,
    output logic [ADDRESS-1:0] request_at,
    input logic [8*formats::BUS-1:0] answer,
    output logic [formats::BUS-1:0] write,
    output logic [ADDRESS-1:0] write_at,
    output logic [8*formats::BUS-1:0] write_data
);
  localparam int LENGTHS = (4 * formats::COUNT_BITS + 31) / 32 * 32;

  logic [3:0] stream_valid, stream_ready;
  logic [formats::LOAD_WIDTH-1:0] stream_load;
  logic [formats::STORE_WIDTH-1:0] stream_store;
  logic [formats::ARRAY_WIDTH-1:0] stream_array;
  logic [formats::POST_WIDTH-1:0] stream_post;
  logic [LENGTHS-1:0] lengths;

  collect #(
      .WIDTH(formats::LOAD_WIDTH)
  ) of_load (
      .clk,
      .reset,
      .put(valid && to == 0),
      .word,
      .ready(ready[0]),
      .valid(stream_valid[0]),
      .data(stream_load),
      .take(stream_ready[0])
  );
  collect #(
      .WIDTH(formats::STORE_WIDTH)
  ) of_store (
      .clk,
      .reset,
      .put(valid && to == 1),
      .word,
      .ready(ready[1]),
      .valid(stream_valid[1]),
      .data(stream_store),
      .take(stream_ready[1])
  );
  collect #(
      .WIDTH(formats::ARRAY_WIDTH)
  ) of_array (
      .clk,
      .reset,
      .put(valid && to == 2),
      .word,
      .ready(ready[2]),
      .valid(stream_valid[2]),
      .data(stream_array),
      .take(stream_ready[2])
  );
  collect #(
      .WIDTH(formats::POST_WIDTH)
  ) of_post (
      .clk,
      .reset,
      .put(valid && to == 3),
      .word,
      .ready(ready[3]),
      .valid(stream_valid[3]),
      .data(stream_post),
      .take(stream_ready[3])
  );
  always_ff @(posedge clk) if (valid && to == 5) lengths <= LENGTHS'({word, lengths} >> 32);

  top #(
      .ADDRESS(ADDRESS)
  ) chip (
      .clk,
      .reset,
      .run,
      .done,
      .cycles(),
      .set_base(valid && to == 4),
      .set_argument(argument),
      .set_address(ADDRESS'(word)),
      .stream_valid,
      .stream_ready,
      .stream_load,
      .stream_store,
      .stream_array,
      .stream_post,
      .total(lengths[4*formats::COUNT_BITS-1:0]),
      .finished(),
      .request,
      .request_at,
      .answer,
      .write,
      .write_at,
      .write_data
  );
endmodule
