"""The decoders of lab/more: they train, search and stop like others; their equations are in ``test_papers.py``."""

import copy
import functools

import pytest
import torch
import torchvision
from small import (
    ATTENTION,
    EMBED,
    ENCODER,
    KINDS,
    LENGTHS,
    PIXELS,
    SIZES,
    STATE,
    WORDS,
    captions,
    make,
    pictures,
    run,
)
from torch.nn.utils.rnn import pad_packed_sequence

from datasets import CaptionDataset
from lab.decode.beam_search import beam_search, greedy_search
from lab.decode.evaluate import caption_split
from lab.more.adaptive import DecoderWithAdaptiveAttention
from lab.more.bahdanau import DecoderWithBahdanauAttention, EncoderDecoder, ResNetEncoder
from lab.more.captionnet import ScaledDotProductAttention
from lab.more.cells import DecoderWithCell
from lab.more.decoder import Decoder
from lab.train.batches import Batches
from lab.train.checkpoints import checkpoint_paths, load_model
from lab.train.forward import true_words
from models import DecoderWithRNN, Encoder
from solver import DEFAULTS, caption_loss, check_settings, train

ATTENDING = [name for name, (_, options) in KINDS.items() if 'attention_dim' in options]


@pytest.mark.parametrize(('dropout', 'kind'), [(dropout, kind) for dropout in (1.0, 0.5) for kind in KINDS])
def test_dropout_is_in_training_only(dropout, kind):
    """With all entries dropped, the bias is what remains of the scores; alphas are as without."""
    decoder = make(kind, dropout=dropout)
    whole, *alphas = run(decoder)
    assert torch.equal(run(decoder)[0], whole)
    decoder.train()
    for module in decoder.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            module.eval()
    predictions, *dropped_alphas = run(decoder)
    if dropout < 1:
        assert not torch.equal(run(decoder)[0], predictions)
    else:
        for i, length in enumerate(LENGTHS):
            assert torch.equal(predictions[i, :length - 1], decoder.fc.bias.expand(length - 1, -1))
    for one, other in zip(dropped_alphas, alphas, strict=True):
        assert (one - other).abs().max() < 1e-12


# --- Knowing when to look ---


@pytest.mark.parametrize('gate', ['open', 'closed'])
def test_the_adaptive_decoders_sentinel_is_from_the_new_cell_state_in_training_too(gate):
    """h is o * tanh(m): behind a closed output gate the cell state can't be had from h."""
    decoder = make('adaptive')
    if gate == 'closed':
        with torch.no_grad():
            decoder.decode_step.bias_ih.chunk(4)[3].fill_(-1000)
    seen, attend = [], decoder.attend
    decoder.attend = lambda *args: (seen.append(args[-1]), attend(*args))[1]
    run(decoder)
    del decoder.attend
    longest = LENGTHS.index(max(LENGTHS))
    state, memory = decoder.start(pictures()[longest:longest + 1])
    for t in range(max(LENGTHS) - 1):
        _, state, _ = decoder.step(captions()[longest:longest + 1, t], state, memory)
        assert state[0].any() == (gate == 'open') and state[1].any()
        # the longest caption comes first
        assert (seen[0][0, t] - torch.tanh(state[1][0])).abs().max() < 1e-12


def test_the_adaptive_decoder_in_half_precision():
    decoder, found = make('adaptive').float(), []
    for bf16 in (False, True):
        with torch.autocast('cpu', torch.bfloat16, enabled=bf16):
            packed, _, _, alphas, _ = decoder(pictures().float(), captions(), torch.tensor(LENGTHS).unsqueeze(1))
        found.append((packed.data, alphas))
    for whole, half in zip(*found, strict=True):
        assert 0 < (whole - half).abs().max() < 0.05 * whole.abs().max()


def test_large_weights_of_the_adaptive_decoder_are_not_clipped(tiny_cfg):
    """``grad_clip`` clips gradients: a weight may be as large as it likes."""
    cfg = {**tiny_cfg, 'decoder': 'lab.more.adaptive.DecoderWithAdaptiveAttention', 'grad_clip': 0.1, 'epochs': 1}
    original = DecoderWithAdaptiveAttention.__init__

    @functools.wraps(original)
    def large(self, *args, **kwargs):
        original(self, *args, **kwargs)
        with torch.no_grad():
            self.W_x.weight[0, 0] = 30.0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DecoderWithAdaptiveAttention, '__init__', large)
        train(cfg)
    model = load_model(f"{cfg['output_folder']}/BEST_checkpoint_DecoderWithAdaptiveAttention.pth.tar", 'cpu')
    assert model.decoder.W_x.weight[0, 0].item() == pytest.approx(30, abs=1)


def test_the_whole_bahdanau_model():
    encoder = ResNetEncoder(weights=None)
    decoder = DecoderWithBahdanauAttention(ATTENTION, EMBED, STATE, WORDS, encoder_dim=2048)
    model = EncoderDecoder(encoder, decoder).eval()
    images = torch.linspace(0, 255, 2 * 3 * 256 * 256).to(torch.uint8).view(2, 3, 256, 256)
    lengths = torch.tensor([[4], [6]])
    with torch.no_grad():
        assert encoder(images).shape == (2, 8, 8, 2048)
        logits, alphas, targets, decode_lengths, sort_ind = model(images, captions()[:2, :6], lengths)
        predictions, _, _, expected_alphas, _ = decoder(encoder(images), captions()[:2, :6], lengths)
        first, *_ = decoder.step(captions()[[1, 0], 0], *decoder.start(encoder(images)[[1, 0]]))
    assert logits.shape == (2, 5, WORDS) and alphas.shape == (2, 5, 64)
    assert torch.equal(logits, pad_packed_sequence(predictions, batch_first=True)[0])
    assert torch.equal(alphas, expected_alphas) and not alphas[1, 3:].any() and not logits[1, 3:].any()
    assert (logits[:, 0] - first).abs().max() < 1e-5 and logits.std() > 0
    assert decode_lengths == [5, 3] and sort_ind.tolist() == [1, 0]
    assert targets.tolist() == [captions()[1, 1:6].tolist(), [*captions()[0, 1:4].tolist(), 0, 0]]


def test_the_whole_bahdanau_model_learns(tiny_data):
    """Encoder and decoder together, from pixels: both get their gradient."""
    torch.manual_seed(0)
    data = CaptionDataset(tiny_data['data_folder'], tiny_data['data_name'], 'TRAIN')
    batch = Batches(data, [torch.arange(0, 40, 5)])[0]
    images, captions_, lengths = batch.images[batch.image_of], batch.captions, batch.caplens.unsqueeze(1)
    encoder = Encoder('shapes_cnn', encoded_image_size=4)
    encoder.fine_tune(True)
    model = EncoderDecoder(encoder, DecoderWithBahdanauAttention(
        16, 24, 48, int(captions_.max()) + 1, encoder_dim=encoder.encoder_dim, dropout=0.1)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.Adam([dict(params=[p for p in encoder.parameters() if p.requires_grad], lr=1e-4),
                                  dict(params=model.decoder.parameters(), lr=2e-2)])
    losses = []
    for _ in range(30):
        logits, _, targets, *_ = model(images, captions_, lengths)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.4 * losses[0]
    changed = {name.partition('.')[0] for name, value in model.state_dict().items()
               if not torch.equal(value, before[name])}
    assert changed == {'encoder', 'decoder'}


@pytest.mark.slow
def test_resnet_50_and_the_bahdanau_decoder_by_settings(tiny_cfg, tmp_path):
    """Its own 8 x 8 grid, from training to the attention maps."""
    torch.save(torchvision.models.resnet50().state_dict(), tmp_path / 'resnet50.pth')
    cfg = {**tiny_cfg, 'encoder': 'resnet50', 'encoder_weights': str(tmp_path / 'resnet50.pth'), 'epochs': 1,
           'encoded_image_size': None, 'decoder': 'lab.more.bahdanau.DecoderWithBahdanauAttention'}
    train(cfg)
    model = load_model(f"{cfg['output_folder']}/BEST_checkpoint_DecoderWithBahdanauAttention.pth.tar", 'cpu')
    for caption in caption_split(model, 'TEST', beam_size=2, max_len=5):
        assert caption['alphas'].shape == (len(caption['caption']), 8, 8)


# --- Scheduled sampling ---


def test_a_teacher_forcing_of_one_is_plain_teacher_forcing():
    """In training: what people's words give, read one by one; and no random number is drawn."""
    decoder = make('bahdanau').train()
    decoder.dropout.p = 0.0
    random = torch.get_rng_state()
    predictions = run(decoder)[0]
    assert torch.equal(torch.get_rng_state(), random)
    for i, length in enumerate(LENGTHS):
        state, memory = decoder.start(pictures()[i:i + 1])
        for t in range(length - 1):
            scores, state, _ = decoder.step(captions()[i:i + 1, t], state, memory)
            assert (scores[0] - predictions[i, t]).abs().max() < 1e-12
    assert (run(decoder, teacher_forcing=0.0)[0] - predictions).abs().max() > 1e-3


@pytest.mark.parametrize('ratio', [0.0, 0.3])
def test_the_ratio_is_that_of_true_words(ratio):
    decoder, fed = make('bahdanau').train(), []
    original = decoder.step
    decoder.step = lambda words, state, memory: fed.append(words) or original(words, state, memory)
    # own words: always the last in the vocabulary, which no caption holds
    with torch.no_grad():
        decoder.fc.bias.fill_(-1e3)
        decoder.fc.bias[WORDS - 1] = 1e3
    torch.manual_seed(0)
    tokens = captions() % (WORDS - 2) + 1
    n = 300
    decoder(pictures()[:1].expand(n, -1, -1, -1), tokens[1:2].expand(n, -1), torch.full((n, 1), max(LENGTHS)),
            teacher_forcing=ratio)
    assert torch.equal(fed[0], tokens[1, 0].expand(n))  # <start> is always fed
    share = torch.stack([words == tokens[1, t] for t, words in enumerate(fed[1:], 1)]).double().mean().item()
    assert share == pytest.approx(ratio, abs=0.03)
    assert torch.stack([(words == tokens[1, t]) | (words == WORDS - 1) for t, words in enumerate(fed[1:], 1)]).all()


def test_the_ratio_falls_over_the_epochs(tiny_cfg, monkeypatch):
    seen = []
    original = Decoder.forward
    monkeypatch.setattr(Decoder, 'forward', lambda self, *args, teacher_forcing=1.0: (
        seen.append(teacher_forcing) if self.training else None, original(self, *args, teacher_forcing))[1])
    train({**tiny_cfg, 'decoder': 'lab.more.bahdanau.DecoderWithBahdanauAttention', 'teacher_forcing': (0.9, 0.5),
           'epochs': 3})
    assert sorted(set(seen), reverse=True) == pytest.approx([0.9, 0.7, 0.5])


def test_scheduled_sampling_is_refused_where_there_is_none(tiny_cfg):
    with pytest.raises(ValueError, match="'teacher_forcing' is 0.5, but DecoderWithAttention is always fed the true"):
        train({**tiny_cfg, 'teacher_forcing': 0.5})
    for value in (1.5, (1.0,), (1, 1, 1), 'no', True, (0.5, None)):
        with pytest.raises(ValueError, match="setting 'teacher_forcing'"):
            check_settings({'teacher_forcing': value})


# --- Scaled dot-product attention ---


def test_heads_that_do_not_fit():
    for heads, attention in *((heads, ATTENTION) for heads in (3, 4, 0, -1, True)), (5, 6):
        with pytest.raises(ValueError, match=f'heads is {heads}; it must be a whole number that divides attention_dim'):
            ScaledDotProductAttention(ENCODER, STATE, attention, heads=heads)


def test_captionnet_takes_features_with_the_channels_first():
    decoder = make('captionnet')
    vgg = pictures().flatten(1, 2).transpose(1, 2)
    assert vgg.shape == (len(LENGTHS), ENCODER, PIXELS)
    for one, flat, other in zip(run(decoder, vgg), run(decoder, vgg.transpose(1, 2)), run(decoder), strict=True):
        assert torch.equal(one, other) and torch.equal(flat, other)
    square = torch.linspace(0, 40, ENCODER ** 2, dtype=torch.float64).cos().view(1, ENCODER, ENCODER)
    assert torch.equal(decoder.cells(square), square)  # as many cells as channels: these come last
    for strange in (vgg[:, 1:], vgg.unsqueeze(1)):
        with pytest.raises(ValueError, match=f'neither the last nor, of three, the second number is .* {ENCODER}'):
            decoder.start(strange)


# --- Cells ---


def test_the_lstm_cell_is_the_plain_decoder():
    one, other = make('lstm'), DecoderWithRNN(**SIZES).double().eval()
    other.load_state_dict(one.state_dict())
    predictions, _, lengths, sort_ind = other(pictures(), captions(), torch.tensor(LENGTHS).unsqueeze(1))
    predictions = predictions[sort_ind.argsort()] if torch.is_tensor(predictions) else predictions
    assert (run(one)[0] - predictions).abs().max() < 1e-12


def test_the_cell_without_options_and_its_batch_norm():
    decoder = DecoderWithCell(**SIZES).double().train()
    assert isinstance(decoder.decode_step, torch.nn.GRUCell)
    before = decoder.bn.running_mean.clone()
    run(decoder)
    assert not torch.equal(decoder.bn.running_mean, before)


def test_an_unknown_cell():
    with pytest.raises(ValueError, match="cell is 'gru'; it must be one of 'RNN', 'GRU', 'LSTM'"):
        DecoderWithCell(**SIZES, cell='gru')


# --- What all of them have in common ---


def agree(kind, dtype, tolerance):
    """``forward``, of captions of all lengths at once, and ``step``, word by word."""
    decoder, encoder_out = make(kind).to(dtype), pictures().to(dtype)
    predictions, *alphas = run(decoder, encoder_out)
    for i, length in enumerate(LENGTHS):
        state, memory = decoder.start(encoder_out[i:i + 1])
        for t in range(length - 1):
            scores, state, alpha = decoder.step(captions()[i:i + 1, t], state, memory)
            assert scores.dtype == dtype
            assert (predictions[i, t] - scores[0]).abs().max() < tolerance
            if alphas:
                assert (alphas[0][i, t] - alpha[0]).abs().max() < tolerance
        for values in (predictions, *alphas):
            assert (values[i, length - 1:] == 0).all()


@pytest.mark.parametrize('kind', KINDS)
def test_teacher_forcing_equals_step_repeated(kind):
    agree(kind, torch.float64, 1e-10)


@pytest.mark.parametrize('kind', KINDS)
@torch.no_grad()
def test_forward_and_steps_agree_in_single_precision(kind):
    agree(kind, torch.float32, 1e-5)


@pytest.mark.parametrize('kind', KINDS)
def test_a_prediction_does_not_see_the_word_to_come(kind):
    decoder, tokens = make(kind), captions()
    predictions = run(decoder)[0]
    for t in range(1, max(LENGTHS) - 1):
        changed = tokens.clone()
        changed[:, t:] = changed[:, t:] % (WORDS - 1) + 1
        now = run(decoder, tokens=changed)[0]
        assert torch.equal(now[:, :t], predictions[:, :t])
        assert (now[1, t] - predictions[1, t]).abs().max() > 1e-6


@pytest.mark.parametrize('kind', ATTENDING)
def test_alphas_move_with_the_pixels(kind):
    decoder, order = make(kind), torch.tensor([3, 0, 5, 1, 4, 2])
    predictions, alphas = run(decoder)
    moved, alphas_moved = run(decoder, pictures().flatten(1, 2)[:, order].view_as(pictures()))
    assert (moved - predictions).abs().max() < 1e-10
    assert (alphas_moved - alphas[..., order]).abs().max() < 1e-10
    assert alphas.std(dim=2)[0, 0] > 1e-3


@pytest.mark.parametrize('kind', ATTENDING)
def test_alphas_are_weights(kind):
    _, alphas = run(make(kind))
    running = torch.arange(alphas.shape[1]) < torch.tensor(LENGTHS).unsqueeze(1) - 1
    sums = alphas.sum(dim=2)
    assert (alphas >= 0).all() and (sums[~running] == 0).all()
    if kind == 'adaptive':  # the rest is beta
        assert ((sums[running] > 0.05) & (sums[running] < 0.999)).all()
    else:
        assert (sums[running] - 1).abs().max() < 1e-10


@pytest.mark.parametrize('kind', KINDS)
def test_every_parameter_gets_a_gradient_and_the_picture_matters(kind):
    decoder = make(kind).train()
    for module in decoder.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    returned = decoder(pictures(), captions(), torch.tensor(LENGTHS).unsqueeze(1))
    caption_loss(*true_words(returned)[:3], alpha_c=1.0).backward()
    for name, parameter in decoder.named_parameters():
        if name not in ('init.bias', 'attention.key.bias'):  # batch norm or softmax takes it out again
            assert parameter.grad.abs().max() > 1e-9, name
    decoder.eval()
    assert (run(decoder)[0] - run(decoder, -pictures())[0]).abs().max() > 1e-3


@pytest.mark.parametrize('kind', KINDS)
@torch.no_grad()
def test_scores_of_beams_are_those_of_their_words(kind):
    """Each beam keeps its own state, as one tensor or two."""
    decoder, end = make(kind), WORDS - 1
    for layer in (decoder.embedding, decoder.decode_step, decoder.fc):  # so that beams overtake one another
        for weight in layer.parameters():
            weight *= 3
    decoder.fc.bias[end] -= 3  # or some say nothing
    word_map = {'<pad>': 0, **{f'word{i}': i for i in range(1, end - 2)}, '<unk>': end - 2, '<start>': end - 1,
                '<end>': end}
    for picture, found in enumerate(beam_search(decoder, pictures(), word_map, 4, 6)):
        state, memory = decoder.start(pictures()[picture:picture + 1])
        said, total = [*found.words, *[end] * found.finished], 0.0
        for word, then in zip([word_map['<start>'], *said], said, strict=False):
            scores, state, _ = decoder.step(torch.tensor([word]), state, memory)
            total += scores.log_softmax(dim=1)[0, then].item()
        assert found.score == pytest.approx(total, abs=1e-4)
        assert len(found.words) > 1


@pytest.mark.parametrize('kind', KINDS)
def test_five_captions_are_learned_by_heart(kind):
    torch.manual_seed(0)
    cls, options = KINDS[kind]
    decoder = cls(**{**SIZES, 'decoder_dim': 40, 'embed_dim': 20}, **options, dropout=0.0)
    optimizer = torch.optim.Adam(decoder.parameters(), lr=0.02)
    for _ in range(200):
        returned = decoder(pictures().float(), captions(), torch.tensor(LENGTHS).unsqueeze(1))
        loss = caption_loss(*true_words(returned)[:2])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.1
    word_map = {'<pad>': 0, '<unk>': 0, '<start>': int(captions()[0, 0]), '<end>': int(captions()[0, 4])}
    found = greedy_search(decoder, pictures()[:1].float(), word_map, 8)
    assert found[0].words == captions()[0, 1:4].tolist()
    assert len(beam_search(decoder, pictures().float(), word_map, 3, 6)) == len(LENGTHS)


# --- In the lab ---


@pytest.mark.parametrize(('decoder', 'options'), [
    ('DecoderWithSpatialAttention', {}), ('DecoderWithAdaptiveAttention', {}), ('DecoderWithBahdanauAttention', {}),
    ('CaptionNet', dict(heads=2)), ('DecoderWithCell', dict(cell='RNN')), ('DecoderWithCell', dict(cell='GRU')),
    ('DecoderWithCell', dict(cell='LSTM'))])
def test_trained_by_the_same_loop(tiny_cfg, decoder, options):
    kind = next(kind for kind, (cls, own) in KINDS.items()
                if cls.__name__ == decoder and options == {key: own.get(key) for key in options})
    cfg = {**tiny_cfg, 'decoder': f'{KINDS[kind][0].__module__}.{decoder}', 'decoder_options': options, 'epochs': 12,
           'decoder_lr': 2e-2, 'dropout': 0.1}
    history = train(cfg)
    first, last = history[0]['train_loss'], history[-1]['train_loss']
    assert last < 0.65 * first
    model = load_model(f"{cfg['output_folder']}/BEST_checkpoint_{decoder}.pth.tar", 'cpu')
    assert model.name == decoder and model.settings['decoder_options'] == options
    found = caption_split(model, 'TEST', beam_size=3, max_len=20)
    assert len(found) == 6
    for caption in found:
        shape = None if decoder == 'DecoderWithCell' else (len(caption['caption']), 4, 4)
        assert shape == (caption['alphas'].shape if caption['alphas'] is not None else None)


def test_a_decoder_without_its_file(tiny_cfg):
    said = "'decoder' is 'CaptionNet'; it must be like 'my_decoder.MyDecoder', the file's name before a dot"
    with pytest.raises(ValueError, match=said):
        train({**tiny_cfg, 'decoder': 'CaptionNet'})


def test_options_that_a_decoder_does_not_have(tiny_cfg):
    with pytest.raises(TypeError, match="CaptionNet.*unexpected keyword argument 'head'"):
        train({**tiny_cfg, 'decoder': 'lab.more.captionnet.CaptionNet', 'decoder_options': dict(head=2)})
    with pytest.raises(TypeError, match="DecoderWithAttention.*unexpected keyword argument 'cell'"):
        train({**tiny_cfg, 'decoder_options': dict(cell='GRU')})


def test_a_killed_training_goes_on_the_same(tiny_cfg):
    cfg = {**tiny_cfg, 'decoder': 'lab.more.bahdanau.DecoderWithBahdanauAttention', 'teacher_forcing': (0.9, 0.6),
           'epochs': 3}
    straight = train(cfg)
    parts = {**cfg, 'output_folder': cfg['output_folder'] + '_parts'}
    stopped = copy.deepcopy(parts)
    import solver
    real, epochs = solver.validate, []

    def validate(*args):
        epochs.append(1)
        if len(epochs) == 2:
            raise KeyboardInterrupt
        return real(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solver, 'validate', validate)
        with pytest.raises(KeyboardInterrupt):
            train(stopped)
    latest = f"{parts['output_folder']}/checkpoint_{parts['data_name']}_DecoderWithBahdanauAttention.pth.tar"
    resumed = train({**parts, 'checkpoint': latest})
    assert [{**epoch, 'seconds': 0} for epoch in resumed] == [{**epoch, 'seconds': 0} for epoch in straight]


def test_the_resnet_encoder_is_torchvisions_resnet_50(tmp_path):
    original = torchvision.models.resnet50(weights=None)
    with torch.no_grad():
        original.layer4[2].conv3.weight.fill_(0.25)
    torch.save(original.state_dict(), tmp_path / 'resnet50.pth')
    encoder = ResNetEncoder(weights=str(tmp_path / 'resnet50.pth')).eval()
    layers = {name: tuple(value.shape) for name, value in original.named_parameters() if not name.startswith('fc.')}
    assert sorted(layers.values()) == sorted(tuple(value.shape) for value in encoder.parameters())
    assert (list(encoder.parameters())[-3] == 0.25).all()
    with torch.no_grad():
        assert encoder(torch.zeros(1, 3, 96, 160, dtype=torch.uint8)).shape == (1, 3, 5, 2048)  # native, whatever size


def test_encoder_for_the_bahdanau_decoder_is_the_labs():
    assert isinstance(ResNetEncoder(weights=None), Encoder)


def test_other_heads_are_another_function(tiny_cfg, tmp_path, capsys):
    """Though the weights would fit."""
    cfg = {**tiny_cfg, 'decoder': 'lab.more.captionnet.CaptionNet', 'decoder_dim': 16, 'attention_dim': 8, 'epochs': 1}
    train(cfg)
    latest, best = checkpoint_paths({**DEFAULTS, **cfg})
    two = {**cfg, 'decoder_options': dict(heads=2), 'epochs': 2}
    with pytest.raises(ValueError, match=r"decoder_options=\{\}, and the settings say \{.heads.: 2\}: set it as"):
        train({**two, 'checkpoint': str(latest)})
    train({**two, 'start_from': str(best), 'output_folder': str(tmp_path / 'second')})
    assert "was trained with decoder_options={}; from here on they are {'heads': 2}." in capsys.readouterr().out
