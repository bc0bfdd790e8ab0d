// The accumulators: a memory of 32-bit sums for each column of the grid, which adds results to them as they come out.
//
// What to do with a row (`order`) enters at column 0 in the cycle before its result does, and goes from column to
// column with the results: a column reads (A), adds (B), writes (C). Sums that are not yet written when they are read
// again are taken from where they are on their way. Columns from `columns` on keep their sums. `finish` comes when the last column writes the last row.
//
// The memories are doubled, as `requantize` reads rows while the array adds to others.
module accumulators #(
    parameter int N     = 8,
    parameter int SUM   = 19,
    parameter int WORDS = 2048,
    parameter int AT    = 11,
    parameter int COUNT = 4      // bits of the number of columns
) (
    input  logic             clk,
    input  logic             reset,
    // column 0 of what the array does
    input  logic             valid,
    input  logic [   AT-1:0] at,
    input  logic             replace,
    input  logic [COUNT-1:0] columns,
    input  logic             last,
    input  logic [SUM*N-1:0] sums,
    output logic             finish,
    // whole rows for requantize, in the next cycle
    input  logic [   AT-1:0] read_at,
    output logic [ 32*N-1:0] read_data
);
  localparam int ADDER = $clog2(WORDS);

  // step[j]: the order that column j reads for, column j - 1 adds for, column j - 2 writes for
  for (genvar s = 0; s < N + 2; s++) begin : step
    logic valid_here, replace_here, last_here;
    logic after_one, after_two;  // the row before is the same one; the row before that one is
    logic [AT-1:0] row;
    logic [COUNT-1:0] columns_here;

    if (s == 0) begin : g_in
      assign {valid_here, replace_here, last_here, row, columns_here} = {valid, replace, last, at, columns};
      assign after_one = step[1].valid_here && step[1].row == at;
      assign after_two = step[2].valid_here && step[2].row == at;
    end else begin : g_on
      always_ff @(posedge clk) begin
        valid_here <= step[s-1].valid_here && !reset;
        {replace_here, last_here, after_one, after_two, row, columns_here} <= {
          step[s-1].replace_here,
          step[s-1].last_here,
          step[s-1].after_one,
          step[s-1].after_two,
          step[s-1].row,
          step[s-1].columns_here
        };
      end
    end
  end
  assign finish = step[N+1].valid_here && step[N+1].last_here;

  for (genvar j = 0; j < N; j++) begin : column
    logic [31:0] stored, old, sum, sum_before;
    logic used;

    assign used = step[j+1].columns_here > COUNT'(j);

    always_comb begin
      old = stored;
      if (step[j+1].after_two) old = sum_before;
      if (step[j+1].after_one) old = sum;
      if (step[j+1].replace_here && used) old = '0;
    end
    always_ff @(posedge clk) begin
      sum <= old + (used ? 32'($signed(sums[SUM*j+:SUM])) : 32'b0);
      sum_before <= sum;
    end

    ram #(
        .BYTES(4),
        .WORDS(WORDS)
    ) for_array (
        .clk,
        .write({4{step[j+2].valid_here}}),
        .write_at(ADDER'(step[j+2].row)),
        .write_data(sum),
        .read_at(ADDER'(step[j].row)),
        .read_data(stored)
    );
    ram #(
        .BYTES(4),
        .WORDS(WORDS)
    ) for_post (
        .clk,
        .write({4{step[j+2].valid_here}}),
        .write_at(ADDER'(step[j+2].row)),
        .write_data(sum),
        .read_at(ADDER'(read_at)),
        .read_data(read_data[32*j+:32])
    );
  end
endmodule
