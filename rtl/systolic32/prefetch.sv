// The next two instructions of an engine, so that it never waits for one while the instruction memory keeps up.
module prefetch #(
    parameter int WIDTH = 32
) (
    input  logic             clk,
    input  logic             reset,
    input  logic             in_valid,
    input  logic [WIDTH-1:0] in_data,
    output logic             in_ready,
    output logic             valid,
    output logic [WIDTH-1:0] next,
    input  logic             take
);
  logic [WIDTH-1:0] second;
  logic [1:0] held;
  logic put;

  assign in_ready = held != 2;
  assign valid = held != 0;
  assign put = in_valid && in_ready;

  always_ff @(posedge clk) begin
    held <= reset ? '0 : held + 2'(put) - 2'(take);
    if (take) next <= second;
    if (put && held == 2'(take)) next <= in_data;
    if (put) second <= in_data;
  end
endmodule
