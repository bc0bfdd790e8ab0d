// An instruction from words of 32 bits, the lowest first.
module collect #(
    parameter int WIDTH = 64
) (
    input  logic             clk,
    input  logic             reset,
    input  logic             put,
    input  logic [     31:0] word,
    output logic             ready,
    output logic             valid,
    output logic [WIDTH-1:0] data,
    input  logic             take
);
  localparam int WORDS = WIDTH / 32;

  logic [$clog2(WORDS+1)-1:0] held;

  assign valid = held == ($clog2(WORDS + 1))'(WORDS);
  assign ready = !valid;

  always_ff @(posedge clk) begin
    if (reset || (valid && take)) held <= '0;
    else if (put && ready) held <= held + 1'b1;
    if (put && ready) data <= WIDTH'({word, data} >> 32);
  end
endmodule
