// A byte, CYCLES (0 or more) later: what gives words the slanted front of the grid.
module slant #(
    parameter int CYCLES = 1
) (
    input  logic       clk,
    input  logic [7:0] in,
    output logic [7:0] out
);
  if (CYCLES == 0) begin : g_now
    assign out = in;
  end else begin : g_later
    logic [8*CYCLES-1:0] line;
    always_ff @(posedge clk) line <= (8 * CYCLES)'({line, in});
    assign out = line[8*CYCLES-1-:8];
  end
endmodule
