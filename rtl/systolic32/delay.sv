// What comes in goes out again CYCLES (2 or more) later. The data are in a ring in a small memory, as that can hold more
// than registers; only `valid` is reset.
module delay #(
    parameter int WIDTH  = 8,
    parameter int CYCLES = 2
) (
    input  logic             clk,
    input  logic             reset,
    input  logic             in_valid,
    input  logic [WIDTH-1:0] in,
    output logic             out_valid,
    output logic [WIDTH-1:0] out
);
  localparam int LENGTH = CYCLES - 1;
  localparam int AT = LENGTH > 1 ? $clog2(LENGTH) : 1;

  logic [WIDTH-1:0] ring[LENGTH];
  logic [AT-1:0] at;
  logic [CYCLES-1:0] valid;

  assign out_valid = valid[CYCLES-1];

  always_ff @(posedge clk) begin
    at <= reset || at == AT'(LENGTH - 1) ? '0 : at + 1'b1;
    valid <= reset ? '0 : {valid[CYCLES-2:0], in_valid};
    ring[at] <= in;
    out <= ring[at];
  end
endmodule
