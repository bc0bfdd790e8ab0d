// The address of three nested loops that `walk` counts: `from` plus the strides of the loops (the innermost in the lowest
// bits) times their indices. `following` is the address after the next step.
module pointer #(
    parameter int WIDTH = 16
) (
    input  logic               clk,
    input  logic               start,
    input  logic [  WIDTH-1:0] from,
    input  logic [3*WIDTH-1:0] strides,
    input  logic               step,
    input  logic [        1:0] level,
    output logic [  WIDTH-1:0] at,
    output logic [  WIDTH-1:0] following
);
  logic [WIDTH-1:0] at1, at2;  // where the present turn of the middle and of the outer loop began
  logic [WIDTH-1:0] stride0, stride1, stride2;

  assign following = (level == 0 ? at : level == 1 ? at1 : at2) +
                     (level == 0 ? stride0 : level == 1 ? stride1 : stride2);

  always_ff @(posedge clk) begin
    if (start) begin
      at  <= from;
      at1 <= from;
      at2 <= from;
      {stride2, stride1, stride0} <= strides;
    end else if (step) begin
      at <= following;
      if (level != 0) at1 <= following;
      if (level == 2) at2 <= following;
    end
  end
endmodule
