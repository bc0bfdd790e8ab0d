// A memory with one port to write, by bytes, and one to read, which answers in the next cycle. A word that is written in
// the cycle in which it is read comes as it was before.
module ram #(
    parameter int BYTES = 4,
    parameter int WORDS = 64
) (
    input  logic                     clk,
    input  logic [        BYTES-1:0] write,
    input  logic [$clog2(WORDS)-1:0] write_at,
    input  logic [      8*BYTES-1:0] write_data,
    input  logic [$clog2(WORDS)-1:0] read_at,
    output logic [      8*BYTES-1:0] read_data
);
  logic [8*BYTES-1:0] words[WORDS];

  always_ff @(posedge clk) begin
    for (int b = 0; b < BYTES; b++) if (write[b]) words[write_at][8*b+:8] <= write_data[8*b+:8];
    read_data <= words[read_at];
  end
endmodule
