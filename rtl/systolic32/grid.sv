// The multipliers: N x N, each with the weight it works with and the one that comes next.
//
// Bytes of activations go from left to right, sums from top to bottom, a cycle for each step: what enters the first row
// in cycle t, enters row i in cycle t + i, and what is there at column 0, is at column j in j more cycles. Weights, the
// order to take a new one (`load`) and the order to begin with it (`swap`) travel in the same slanted front, therefore
// the next weights can follow directly behind the last row of activations.
//
// `x`, `w` come as whole words and are slanted here. A row of weights comes in every cycle from the `load` on. The sum of
// a word x in column j comes N + 1 + j cycles after it.
module grid #(
    parameter int N   = 8,
    parameter int SUM = 16 + $clog2(N)
) (
    input  logic             clk,
    input  logic [  8*N-1:0] x,
    input  logic             swap,
    input  logic [  8*N-1:0] w,
    input  logic             load,
    output logic [SUM*N-1:0] sums
);
  for (genvar j = 0; j < N; j++) begin : column_of_weights
    logic [7:0] byte_here;
    slant #(
        .CYCLES(j)
    ) wait_for_front (
        .clk,
        .in (w[8*j+:8]),
        .out(byte_here)
    );
  end

  for (genvar i = 0; i < N; i++) begin : row
    logic [7:0] first_x;
    logic first_swap, first_load;
    slant #(
        .CYCLES(i)
    ) wait_for_front (
        .clk,
        .in (x[8*i+:8]),
        .out(first_x)
    );
    if (i == 0) begin : g_top
      assign {first_swap, first_load} = {swap, load};
    end else begin : g_below
      always_ff @(posedge clk) {first_swap, first_load} <= {row[i-1].first_swap, row[i-1].first_load};
    end

    for (genvar j = 0; j < N; j++) begin : column
      logic signed [7:0] here, following, weight;
      logic swap_here, load_here;
      logic signed [15:0] product;
      logic signed [SUM-1:0] sum;

      if (j == 0) begin : g_first
        assign {here, swap_here, load_here} = {first_x, first_swap, first_load};
      end else begin : g_right
        always_ff @(posedge clk)
          {here, swap_here, load_here} <= {column[j-1].here, column[j-1].swap_here, column[j-1].load_here};
      end

      always_ff @(posedge clk) begin
        if (load_here) following <= column_of_weights[j].byte_here;
        if (swap_here) weight <= following;
        product <= here * weight;
      end
      if (i == 0) begin : g_top_sum
        always_ff @(posedge clk) sum <= SUM'(product);
      end else begin : g_lower_sum
        always_ff @(posedge clk) sum <= row[i-1].column[j].sum + SUM'(product);
      end
    end
  end

  for (genvar j = 0; j < N; j++) begin : result
    assign sums[SUM*j+:SUM] = row[N-1].column[j].sum;
  end
endmodule
