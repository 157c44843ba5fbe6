// Field tables of all sections but the model's.

#include "tera/config/field.h"
#include "tera/config/limits.h"
#include "tera/config/run_config.h"

namespace tera {
namespace {

constexpr double max_stages = 1 << 16;                // virtual pipeline stages
constexpr double min_scale = 1e-6, max_scale = 1e36;  // range of the loss scale: far inside the range of fp32

}  // namespace

std::span<const Field> DistConfig::fields() {
  using C = DistConfig;
  static constexpr std::array table{
      field<&C::device>("device", "where to compute; auto: a GPU when there is one that this program can use").free(),
      field<&C::threads>("threads", "CPU threads per rank; 0: the cores there are, shared by the ranks of this process")
          .within(0, 1024)
          .free(),
      field<&C::cpu_isa>("cpu_isa", "CPU instructions to use; auto: the widest this machine has").free(),
      field<&C::tensor_model_parallel_size>("tensor_model_parallel_size", "ranks that share each layer")
          .within(1, max_ranks)
          .free(),
      field<&C::sequence_parallel>("sequence_parallel",
                                   "those ranks also share the rows between split products; off where they are one")
          .free(),
      field<&C::pipeline_model_parallel_size>("pipeline_model_parallel_size", "ranks that share the depth of the model")
          .within(1, max_stages)
          .free(),
      field<&C::context_parallel_size>("context_parallel_size",
                                       "ranks that share each sequence; twice as many must divide train.seq_length")
          .within(1, max_ranks)
          .free(),
      field<&C::cp_comm_type>(
          "cp_comm_type",
          "what these ranks send each other in attention: p2p, keys and values round a ring; all_gather, keys and "
          "values at once; a2a, heads (docs/long-context.md)")
          .free(),
      field<&C::dynamic_context_parallel>(
          "dynamic_context_parallel",
          "documents of a step are dealt out anew: each microbatch has its own degree, "
          "up to context_parallel_size, and "
          "short documents need not be cut (packed documents only; docs/long-context.md)")
          .free(),
      field<&C::expert_model_parallel_size>("expert_model_parallel_size", "ranks that share the experts of a layer")
          .within(1, max_ranks)
          .free(),
      field<&C::expert_tensor_parallel_size>("expert_tensor_parallel_size",
                                             "ranks that share each expert; 0: tensor_model_parallel_size")
          .within(0, max_ranks)
          .free(),
      field<&C::virtual_pipeline_model_parallel_size>("virtual_pipeline_model_parallel_size",
                                                      "chunks of layers per rank; 0: 1, or 2 with zero_bubble_v")
          .within(0, max_stages)
          .free(),
      field<&C::pipeline_schedule>("pipeline_schedule",
                                   "order of forward and backward; auto: interleaved with several chunks per rank, "
                                   "else 1f1b")
          .free(),
      field<&C::microbatch_group_size_per_vp_stage>(
          "microbatch_group_size_per_vp_stage",
          "interleaved: microbatches played on a chunk before the next; 0: pipeline_model_parallel_size")
          .within(0, max_stages)
          .free(),
      field<&C::pipeline_model_parallel_layout>("pipeline_model_parallel_layout",
                                                "Megatron's string of what each virtual stage holds "
                                                "(docs/pipeline.md); empty: even, or as the next keys say")
          .free(),
      field<&C::num_layers_in_first_pipeline_stage>("num_layers_in_first_pipeline_stage",
                                                    "layers of the first rank, the others sharing the rest; 0: even")
          .within(0, limits::max_layers)
          .free(),
      field<&C::num_layers_in_last_pipeline_stage>("num_layers_in_last_pipeline_stage", "the same for the last rank")
          .within(0, limits::max_layers)
          .free(),
      field<&C::account_for_embedding_in_pipeline_split>("account_for_embedding_in_pipeline_split",
                                                         "the embedding takes the place of a layer in an even split")
          .free(),
      field<&C::account_for_loss_in_pipeline_split>("account_for_loss_in_pipeline_split",
                                                    "the head with the loss takes the place of a layer")
          .free(),
      field<&C::order>("order", "axes along which ranks are numbered, the first one fastest").free(),
      field<&C::timeout_seconds>("timeout_seconds", "how long a rank waits for others before the run ends")
          .within(0.001, 1e7)
          .free(),
  };
  return table;
}

std::span<const Field> TrainConfig::fields() {
  using C = TrainConfig;
  static constexpr std::array table{
      field<&C::train_iters>("train_iters", "optimizer steps; this or train_samples").at_least(0).free(),
      field<&C::train_samples>("train_samples", "sequences to train on, instead of train_iters").at_least(0).free(),
      field<&C::micro_batch_size>("micro_batch_size", "sequences in one forward pass of a replica")
          .within(1, limits::max_index)
          .numerics(),
      field<&C::global_batch_size>(
          "global_batch_size",
          "sequences per optimizer step; 0: micro_batch_size x replicas, or what it was where a run goes on")
          .within(0, limits::max_index)
          .numerics(),
      field<&C::rampup_batch_size>("rampup_batch_size",
                                   "[first, increment, samples]: the global batch grows from first to "
                                   "global_batch_size, in equal increments over this many samples; needs "
                                   "train_samples")
          .numerics(),
      field<&C::seq_length>("seq_length", "tokens per sequence").within(1, limits::max_index).numerics(),
      field<&C::seed>("seed", "of initial weights, dropout and the order of samples").at_least(0).free(),
      field<&C::eval_interval>("eval_interval",
                               "steps between evaluations, the last of which is at the end of the run; 0: never")
          .at_least(0)
          .free(),
      field<&C::eval_iters>("eval_iters", "global batches per evaluation").at_least(0).free(),
      field<&C::deterministic>("deterministic",
                               "the same config gives the same bits (on a GPU: with the same kernels.json); false "
                               "lets a GPU use kernels whose sums depend on timing")
          .numerics(),
      field<&C::cuda_graph_impl>(
          "cuda_graph_impl",
          "full_iteration: a GPU plays a step as one recorded CUDA graph, where one rank has the process to itself and "
          "all steps make the same calls, and says so where not; none: call by call; the bits are the same")
          .free(),
      field<&C::loss_reduction>(
          "loss_reduction",
          "global: mean over the tokens of the global batch; microbatch: mean of the microbatches' "
          "means, as in Megatron-LM")
          .numerics(),
      field<&C::exit_duration_in_mins>("exit_duration_in_mins", "end cleanly after this many minutes; 0: never")
          .at_least(0)
          .free(),
  };
  return table;
}

std::span<const Field> OptimizerConfig::fields() {
  using C = OptimizerConfig;
  static constexpr std::array table{
      field<&C::optimizer>("optimizer", "adam is AdamW: weight decay apart from the gradient").numerics(),
      field<&C::lr>("lr", "peak learning rate; required to train").at_least(0).numerics(),
      field<&C::min_lr>("min_lr", "floor of the decay").at_least(0).numerics(),
      field<&C::adam_beta1>("adam_beta1", "decay of the first moment").at_least(0).below(1).numerics(),
      field<&C::adam_beta2>("adam_beta2", "decay of the second moment").at_least(0).below(1).numerics(),
      field<&C::adam_eps>("adam_eps", "added to the root of the second moment").above(0).numerics(),
      field<&C::exp_avg_dtype>("exp_avg_dtype",
                               "what adam's first moment is stored as; bf16 halves its memory (docs/numerics.md)")
          .numerics(),
      field<&C::exp_avg_sq_dtype>(
          "exp_avg_sq_dtype",
          "what adam's second moment is stored as; bf16 halves its memory, and adam_beta2 should then be "
          "0.99 or less (docs/numerics.md)")
          .numerics(),
      field<&C::sgd_momentum>("sgd_momentum", "momentum of sgd").at_least(0).below(1).numerics(),
      field<&C::weight_decay>("weight_decay", "on matrices; never on biases and other 1-D parameters")
          .at_least(0)
          .numerics(),
      field<&C::clip_grad>("clip_grad", "largest norm of the gradient; 0: no clipping").at_least(0).numerics(),
      field<&C::use_distributed_optimizer>(
          "use_distributed_optimizer",
          "replicas share main weights and moments; the same as ddp.data_parallel_sharding_strategy=optim")
          .free(),
  };
  return table;
}

std::span<const Field> SchedulerConfig::fields() {
  using C = SchedulerConfig;
  static constexpr std::array table{
      field<&C::lr_decay_style>("lr_decay_style", "shape of the decay from lr to min_lr").numerics(),
      field<&C::lr_warmup_iters>("lr_warmup_iters", "steps of linear warm-up").at_least(0).numerics(),
      field<&C::lr_warmup_samples>("lr_warmup_samples", "the same in sequences, instead of lr_warmup_iters")
          .at_least(0)
          .numerics(),
      field<&C::lr_warmup_init>("lr_warmup_init", "learning rate at the start of the warm-up").at_least(0).numerics(),
      field<&C::lr_decay_iters>("lr_decay_iters", "steps until min_lr, warm-up included; 0: the whole run")
          .at_least(0)
          .numerics(),
      field<&C::lr_decay_samples>("lr_decay_samples", "the same in sequences, instead of lr_decay_iters")
          .at_least(0)
          .numerics(),
      field<&C::lr_wsd_decay_iters>("lr_wsd_decay_iters", "WSD: length of the final decay in steps")
          .at_least(0)
          .numerics(),
      field<&C::lr_wsd_decay_samples>("lr_wsd_decay_samples", "the same in sequences, instead of lr_wsd_decay_iters")
          .at_least(0)
          .numerics(),
      field<&C::lr_wsd_decay_style>("lr_wsd_decay_style", "WSD: shape of the final decay").numerics(),
  };
  return table;
}

std::span<const Field> DdpConfig::fields() {
  using C = DdpConfig;
  static constexpr std::array table{
      field<&C::data_parallel_sharding_strategy>(
          "data_parallel_sharding_strategy",
          "what replicas share instead of each having all of it: nothing, optimizer state (ZeRO-1), gradients too "
          "(ZeRO-2), weights too (ZeRO-3)")
          .free(),
      field<&C::bucket_size>("bucket_size",
                             "gradients reduced at a time, in elements; 0: the larger of 40000000 and 1000000 x "
                             "replicas")
          .within(0, 0x1p50)
          .free(),
  };
  return table;
}

std::span<const Field> CommOverlapConfig::fields() {
  using C = CommOverlapConfig;
  static constexpr std::array table{
      field<&C::overlap_grad_reduce>("overlap_grad_reduce", "reduce gradients over replicas during the backward pass")
          .free(),
      field<&C::overlap_param_gather>("overlap_param_gather",
                                      "gather updated weights during the next forward pass; needs "
                                      "overlap_grad_reduce and shared optimizer state")
          .free(),
      field<&C::tp_comm_overlap>("tp_comm_overlap",
                                 "reduce input gradients over tensor-parallel ranks during the weight-gradient "
                                 "product")
          .free(),
      field<&C::overlap_p2p_comm>("overlap_p2p_comm", "pass activations between pipeline stages during computation")
          .free(),
      field<&C::overlap_moe_expert_parallel_comm>(
          "overlap_moe_expert_parallel_comm",
          "send rows of one microbatch to experts and back during the computation of another: the forward pass of one "
          "is played together with the backward pass of another")
          .free(),
  };
  return table;
}

std::span<const Field> MixedPrecisionConfig::fields() {
  using C = MixedPrecisionConfig;
  static constexpr std::array table{
      field<&C::precision>("precision",
                           "storage of weights and activations; sums, main weights, gradients and moments are fp32 "
                           "(moments: unless optimizer.exp_avg_dtype or exp_avg_sq_dtype says otherwise); fp16 has its "
                           "losses scaled; auto: bf16 on a GPU, fp32 on a CPU")
          .numerics(),
      field<&C::tf32>("tf32", "let a GPU round the operands of fp32 products to 10 bits of mantissa").numerics(),
      field<&C::loss_scale>("loss_scale", "fp16: a constant factor of losses; 0: one that follows the gradients")
          .within(0, max_scale)
          .numerics(),
      field<&C::initial_loss_scale>("initial_loss_scale", "fp16: the factor at the start of a run")
          .within(min_scale, max_scale)
          .numerics(),
      field<&C::min_loss_scale>("min_loss_scale", "fp16: it does not fall below this")
          .within(min_scale, max_scale)
          .numerics(),
      field<&C::loss_scale_window>("loss_scale_window",
                                   "fp16: steps in a row without an overflow after which it doubles")
          .within(1, 1e9)
          .numerics(),
      field<&C::hysteresis>("hysteresis",
                            "fp16: so many overflows halve it (each is a step that is skipped), and then every one "
                            "does until it has doubled again")
          .within(1, 1e9)
          .numerics(),
  };
  return table;
}

std::span<const Field> ChatFormat::fields() {
  using C = ChatFormat;
  static constexpr std::array table{
      field<&C::system>("system", "of the role system, with which a conversation begins; {content} is the text")
          .numerics(),
      field<&C::user>("user", "of the role user").numerics(),
      field<&C::assistant>("assistant", "of the role assistant; what stands before {content} has no loss, the rest has")
          .numerics(),
  };
  return table;
}

std::span<const Field> DatasetConfig::fields() {
  using C = DatasetConfig;
  static constexpr std::array table{
      field<&C::kind>(
          "kind",
          "mock: made from the seed; text: UTF-8 text files; indexed: .bin/.idx files in Megatron-LM's order; sft: "
          "conversations, one JSON object with `messages` a line")
          .numerics(),
      field<&C::data_path>("data_path",
                           "text: a file, folder or pattern, or a list of them; indexed: a prefix, a list of prefixes "
                           "(read in proportion to their sizes), or a list of weight, prefix, weight, prefix, ...; "
                           "sft: a file, folder or "
                           "pattern, or a list of them")
          .numerics(),
      field<&C::blend>("blend", "indexed: the same as a list of {prefix, weight}").numerics(),
      field<&C::train_data_path>("train_data_path",
                                 "indexed, sft: as data_path, for training only; then split does not apply")
          .numerics(),
      field<&C::valid_data_path>("valid_data_path", "indexed, sft: as data_path, for validation only").numerics(),
      field<&C::test_data_path>("test_data_path", "indexed, sft: as data_path, for the test data only").numerics(),
      field<&C::split>("split",
                       "weights of the training, validation and test parts; text: by tokens, indexed: by documents, "
                       "sft: by lines")
          .numerics(),
      field<&C::data_cache_path>("data_cache_path",
                                 "indexed: a folder where sample orders are kept; empty: they are built each time")
          .free(),
      field<&C::mid_level_dataset_surplus>("mid_level_dataset_surplus",
                                           "indexed: what a blend with weights builds of each dataset over its share")
          .within(0, 1000)
          .numerics(),
      field<&C::full_validation>(
          "full_validation",
          "indexed, sft: evaluate on each validation sample once, instead of train.eval_iters batches")
          .free(),
      field<&C::multiple_validation_sets>("multiple_validation_sets",
                                          "indexed, sft: evaluate on each path of the validation data by itself, with "
                                          "a loss for each")
          .numerics(),
      field<&C::validation_set_names>("validation_set_names",
                                      "their names, in the order of the paths; empty: the last parts of the paths")
          .numerics(),
      field<&C::add_extra_token_to_sequence>(
          "add_extra_token_to_sequence",
          "indexed: samples have seq_length + 1 tokens, so that the last one has a target too")
          .numerics(),
      field<&C::drop_last_partial_validation_sequence>("drop_last_partial_validation_sequence",
                                                       "indexed: leave out validation tokens that fill no sequence")
          .numerics(),
      field<&C::reset_position_ids>("reset_position_ids", "positions start over after each end of a document")
          .numerics(),
      field<&C::reset_attention_mask>("reset_attention_mask",
                                      "tokens attend to their own document only, up to its end of document")
          .numerics(),
      field<&C::eod_mask_loss>("eod_mask_loss", "no loss where the input is the end of a document").numerics(),
      field<&C::dataloader_type>("dataloader_type",
                                 "order of training samples; single: the dataset's; cyclic: epoch after epoch, each "
                                 "shuffled anew, as Megatron-LM does")
          .numerics(),
      field<&C::data_sharding>("data_sharding",
                               "cyclic: each replica shuffles its own part of the samples; false: all are shuffled "
                               "together")
          .numerics(),
      field<&C::num_workers>("num_workers",
                             "threads per rank that make microbatches ready ahead; 0: they are read when needed")
          .within(0, 256)
          .free(),
      field<&C::chat_format>("chat_format", "sft: what messages become"),
  };
  return table;
}

std::span<const Field> TokenizerConfig::fields() {
  using C = TokenizerConfig;
  static constexpr std::array table{
      field<&C::tokenizer_type>("tokenizer_type",
                                "ByteTokenizer: ids are UTF-8 bytes, vocabulary 512; NullTokenizer: text is numbers, "
                                "vocabulary model.vocab_size; the others read files (docs/tokenizers.md)")
          .numerics(),
      field<&C::tokenizer_model>("tokenizer_model",
                                 "HuggingFaceTokenizer: tokenizer.json or its folder; SentencePieceTokenizer and "
                                 "Llama2Tokenizer: a .model file; TikTokenizer: its JSON file, or a .tiktoken file")
          .numerics(),
      field<&C::vocab_file>("vocab_file", "GPT2BPETokenizer: vocab.json; BertWordPiece: vocab.txt").numerics(),
      field<&C::merge_file>("merge_file", "GPT2BPETokenizer: merges.txt").numerics(),
      field<&C::vocab_size>("vocab_size", "TikTokenizer: ids to use, special tokens included; 0: 131072")
          .within(0, limits::max_index)
          .numerics(),
      field<&C::tiktoken_pattern>(
          "tiktoken_pattern",
          "TikTokenizer: how text is cut into words: v1, v2, tekken, gpt2, llama3, cl100k, o200k, qwen2 "
          "or a regular expression; empty: v2")
          .numerics(),
      field<&C::tiktoken_num_special_tokens>("tiktoken_num_special_tokens",
                                             "TikTokenizer: ids before those of the file's tokens")
          .within(0, limits::max_index)
          .numerics(),
      field<&C::special_tokens>("special_tokens", "TikTokenizer: NAME=ID of each special token of a .tiktoken file")
          .numerics(),
      field<&C::tokenizer_hf_no_include_special_tokens>(
          "tokenizer_hf_no_include_special_tokens",
          "HuggingFaceTokenizer: leave out the tokens that the post-processor adds to a text")
          .numerics(),
  };
  return table;
}

TokenizerOptions TokenizerConfig::options() const {
  return {.type = tokenizer_type,
          .model = tokenizer_model,
          .vocab_file = vocab_file,
          .merge_file = merge_file,
          .vocab_size = vocab_size,
          .tiktoken_pattern = tiktoken_pattern,
          .tiktoken_num_special_tokens = tiktoken_num_special_tokens,
          .special_tokens = special_tokens,
          .include_special_tokens = !tokenizer_hf_no_include_special_tokens};
}

std::span<const Field> CheckpointConfig::fields() {
  using C = CheckpointConfig;
  static constexpr std::array table{
      field<&C::save>("save",
                      "folder for checkpoints; a run that finds some there goes on from the newest; empty: none are "
                      "written")
          .free(),
      field<&C::save_interval>("save_interval", "steps between checkpoints; 0: only one at the end").at_least(0).free(),
      field<&C::async_save>("async_save", "write in the background; steps wait only for a copy in the host's memory")
          .free(),
      field<&C::keep_last>("keep_last", "how many checkpoints to keep; 0: all").at_least(0).free(),
      field<&C::load>("load", "checkpoint, or folder of checkpoints, to go on from, whatever its layout").free(),
      field<&C::finetune>("finetune", "take only the weights of checkpoint.load: step, data and optimizer start anew")
          .free(),
      field<&C::verify>("verify", "compare the checksums of a checkpoint's files before going on from it").free(),
  };
  return table;
}

std::span<const Field> LoggerConfig::fields() {
  using C = LoggerConfig;
  static constexpr std::array table{
      field<&C::log_interval>("log_interval", "steps between lines on the console").at_least(1).free(),
      field<&C::log_expert_load>(
          "log_expert_load",
          "of models with experts: how many tokens of each step chose each expert of each layer, "
          "in metrics.jsonl")
          .free(),
      field<&C::tensorboard_dir>("tensorboard_dir",
                                 "folder for TensorBoard event files with the numbers and lists of metrics.jsonl, of "
                                 "this run alone; empty: none")
          .free(),
  };
  return table;
}

std::span<const Field> RunSection::fields() {
  using C = RunSection;
  static constexpr std::array table{
      field<&C::name>("name", "name of the run; empty: the config file's name").free(),
      field<&C::dir>("dir", "folder for everything the run writes; empty: runs/<name>").free(),
  };
  return table;
}

std::span<const Field> RunConfig::fields() {
  using C = RunConfig;
  static constexpr std::array table{
      field<&C::model>("model", "The model's family and shape."),
      field<&C::dist>("dist", "Where the run computes, and how the model is split over ranks."),
      field<&C::train>("train", "How long, how much at a time, how often to evaluate."),
      field<&C::optimizer>("optimizer", "The optimizer's rule and constants."),
      field<&C::scheduler>("scheduler", "The learning rate over the run."),
      field<&C::ddp>("ddp", "How replicas share gradients, optimizer state and weights."),
      field<&C::comm_overlap>("comm_overlap", "Which communication runs beside computation; results stay the same."),
      field<&C::mixed_precision>("mixed_precision", "Storage types."),
      field<&C::dataset>("dataset", "What the run reads."),
      field<&C::tokenizer>("tokenizer", "How text becomes token ids."),
      field<&C::checkpoint>("checkpoint", "Where checkpoints go, how often, and where a run starts from."),
      field<&C::logger>("logger", "What the run tells while it works."),
      field<&C::run>("run", "The run's name and folder."),
  };
  return table;
}

}  // namespace tera
