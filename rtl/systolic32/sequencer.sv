// Says which engines may begin their next instruction: when the others have finished as many as it waits for, and fewer
// than the engine's queue are under way. An instruction that finishes in a cycle counts from the next one on.
//
// `done` when every engine has finished its whole stream; `cycles` are those from `run` to there.
module sequencer #(
    parameter int COUNT = formats::COUNT_BITS
) (
    input  logic                    clk,
    input  logic                    reset,
    input  logic                    run,
    // engines, in the order of a program's streams: load, store, array, post
    input  logic [             3:0] valid,
    input  formats::load_copy_t              next_load,
    input  formats::store_copy_t             next_store,
    input  formats::array_mma_t              next_array,
    input  formats::post_requantize_t        next_post,
    input  logic [             3:0] take,
    input  logic [             3:0] finish,
    output logic [             3:0] go,
    // instructions of each stream, and how many are finished
    input  logic [4*COUNT-1:0] total,
    output logic [4*COUNT-1:0] finished,
    output logic                    done,
    output logic [            47:0] cycles
);
  logic [COUNT-1:0] loads, stores, arrays, posts;
  logic [3:0] reached;

  assign {posts, arrays, stores, loads} = finished;
  assign reached[0] = stores >= next_load.wait_store && arrays >= next_load.wait_array && posts >= next_load.wait_post;
  assign reached[1] = loads >= next_store.wait_load && arrays >= next_store.wait_array && posts >= next_store.wait_post;
  assign reached[2] = loads >= next_array.wait_load && stores >= next_array.wait_store && posts >= next_array.wait_post;
  assign reached[3] = loads >= next_post.wait_load && stores >= next_post.wait_store && arrays >= next_post.wait_array;
  assign done = finished == total;

  for (genvar e = 0; e < 4; e++) begin : engine
    localparam int QUEUE = e == 0 ? formats::LOAD_QUEUE : e == 1 ? formats::STORE_QUEUE :
                           e == 2 ? formats::ARRAY_QUEUE : formats::POST_QUEUE;
    localparam int BITS = $clog2(QUEUE + 1);
    logic [BITS-1:0] under_way;

    assign go[e] = run && valid[e] && reached[e] && under_way != BITS'(QUEUE);
    always_ff @(posedge clk) begin
      under_way <= reset ? '0 : under_way + BITS'(take[e]) - BITS'(finish[e]);
      finished[e*COUNT+:COUNT] <=
          reset ? '0 : finished[e*COUNT+:COUNT] + COUNT'(finish[e]);
    end
  end

  always_ff @(posedge clk) cycles <= reset ? '0 : cycles + 48'(run && !done);
endmodule
