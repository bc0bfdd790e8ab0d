// Cuts a copy into pieces, one a cycle: runs of bytes, walked by three nested loops on the host's side and the chip's;
// pieces of at most BUS bytes, none across the border of a word. The first comes in the cycle after `start`, which may
// be given together with the last of the copy before.
module pieces #(
    parameter int BUS     = 8,   // bytes, a power of two
    parameter int ADDRESS = 40,  // bits of a place in the host's memory
    parameter int AT      = 14,  // bits of a word's place on the chip
    parameter int LANE    = 2,   // bits of a piece's place in a word
    parameter int COUNT   = 16,
    parameter int RUN     = 16
) (
    input logic clk,
    input logic reset,

    input logic                 start,
    input logic [  ADDRESS-1:0] host,
    input logic [3*ADDRESS-1:0] host_strides,  // innermost lowest
    input logic [       AT-1:0] at,
    input logic [     3*AT-1:0] strides,
    input logic [  3*COUNT-1:0] counts,
    input logic [      RUN-1:0] run,
    input logic [     LANE-1:0] last_lane,     // pieces of a word, less 1

    output logic               valid,
    output logic               last,
    output logic [ADDRESS-1:0] piece_host,
    output logic [     AT-1:0] piece_word,
    output logic [   LANE-1:0] piece_lane,
    output logic [    BUS-1:0] piece_bytes
);
  logic [RUN-1:0] run_bytes, left;
  logic [LANE-1:0] lanes;
  logic run_ends, next_run, last_run;
  logic [1:0] level;
  logic [ADDRESS-1:0] run_host;
  logic [AT-1:0] run_word;

  assign run_ends = left <= RUN'(BUS);
  assign next_run = valid && run_ends;
  assign last = valid && run_ends && last_run;

  walk #(
      .COUNT(COUNT)
  ) loops (
      .clk,
      .start,
      .counts,
      .step(next_run),
      .level,
      .last(last_run)
  );
  pointer #(
      .WIDTH(ADDRESS)
  ) host_pointer (
      .clk,
      .start,
      .from(host),
      .strides(host_strides),
      .step(next_run),
      .level,
      .at(),
      .following(run_host)
  );
  pointer #(
      .WIDTH(AT)
  ) chip_pointer (
      .clk,
      .start,
      .from(at),
      .strides,
      .step(next_run),
      .level,
      .at(),
      .following(run_word)
  );

  for (genvar b = 0; b < BUS; b++) begin : byte_of_piece
    assign piece_bytes[b] = left > RUN'(b);
  end

  always_ff @(posedge clk) begin
    if (reset) valid <= 1'b0;
    else if (start) valid <= 1'b1;
    else if (last) valid <= 1'b0;

    if (start) begin
      run_bytes  <= run;
      lanes      <= last_lane;
      left       <= run;
      piece_host <= host;
      piece_word <= at;
      piece_lane <= '0;
    end else if (run_ends) begin
      left       <= run_bytes;
      piece_host <= run_host;
      piece_word <= run_word;
      piece_lane <= '0;
    end else begin
      left       <= left - RUN'(BUS);
      piece_host <= piece_host + ADDRESS'(BUS);
      piece_word <= piece_lane == lanes ? piece_word + 1'b1 : piece_word;
      piece_lane <= piece_lane == lanes ? '0 : piece_lane + 1'b1;
    end
  end
endmodule
