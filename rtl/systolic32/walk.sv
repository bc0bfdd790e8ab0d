// Counts three nested loops, the innermost in the lowest bits of `counts`. `level` is the loop that the next step
// advances, 0 the innermost; `last` says that all are at their ends.
module walk #(
    parameter int COUNT = 16
) (
    input  logic               clk,
    input  logic               start,
    input  logic [3*COUNT-1:0] counts,
    input  logic               step,
    output logic [        1:0] level,
    output logic               last
);
  logic [COUNT-1:0] left0, left1, left2;  // steps still to come in each loop
  logic [COUNT-1:0] all0, all1;

  assign level = left0 != 0 ? 2'd0 : left1 != 0 ? 2'd1 : 2'd2;
  assign last  = left0 == 0 && left1 == 0 && left2 == 0;

  always_ff @(posedge clk) begin
    if (start) begin
      left0 <= counts[0+:COUNT] - 1'b1;
      left1 <= counts[COUNT+:COUNT] - 1'b1;
      left2 <= counts[2*COUNT+:COUNT] - 1'b1;
      all0  <= counts[0+:COUNT] - 1'b1;
      all1  <= counts[COUNT+:COUNT] - 1'b1;
    end else if (step) begin
      left0 <= level == 0 ? left0 - 1'b1 : all0;
      if (level == 1) left1 <= left1 - 1'b1;
      if (level == 2) begin
        left1 <= all1;
        left2 <= left2 - 1'b1;
      end
    end
  end
endmodule
