package backup

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// maxCfg bounds the file: it has about 100 bytes for each block, so that this is
// enough for more than 1 TiB of data.
const maxCfg = 64 << 20

// maxBeside bounds what is not Blocks, before and behind them, and each of them.
const maxBeside = 1 << 20

// Parse reads a backing-image.cfg. It is an error when it is cut, is not JSON, or
// cannot be of any image. Keys that are not known are ignored. Blocks are taken one
// by one, so that memory is that of their sums.
func Parse(r io.Reader) (*Backup, error) { return parseUpTo(r, maxCfg) }

func parseUpTo(r io.Reader, limit int64) (*Backup, error) {
	h := sha256.New()
	limited := &io.LimitedReader{R: r, N: limit + 1}
	beside := &io.LimitedReader{R: limited, N: maxBeside}
	in := bufio.NewReader(io.TeeReader(beside, h))
	b, err := parse(json.NewDecoder(in), beside)
	switch {
	case limited.N <= 0:
		return nil, fmt.Errorf("it has more than %d bytes", limit)
	case beside.N <= 0:
		return nil, fmt.Errorf("it has more than %d bytes beside its blocks", maxBeside)
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return nil, errors.New("it is cut short")
	case err != nil:
		return nil, err
	}
	b.fingerprint = hex.EncodeToString(h.Sum(nil))
	return b, nil
}

// parse is Parse. With every block more is let through beside.
func parse(d *json.Decoder, beside *io.LimitedReader) (*Backup, error) {
	b := &Backup{Compression: Gzip} // of the time before the key was there
	if err := expect(d, '{'); err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, err
		}
		key := token.(string) // or Token would have failed
		if seen[key] {
			return nil, fmt.Errorf("key %.40q is there twice", key)
		}
		seen[key] = true
		if err := b.parseKey(d, key, beside); err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
	}
	if err := expect(d, '}'); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err == nil {
		return nil, errors.New("something follows its end")
	} else if !errors.Is(err, io.EOF) {
		return nil, err
	}
	return b, b.check()
}

func expect(d *json.Decoder, want json.Delim) error {
	token, err := d.Token()
	if err != nil {
		return err
	}
	if token != want {
		return fmt.Errorf("it is no cfg: %q is missing", string(want))
	}
	return nil
}

func (b *Backup) parseKey(d *json.Decoder, key string, beside *io.LimitedReader) (err error) {
	var text string
	switch key {
	case "Name":
		return d.Decode(&b.Name)
	case "Checksum":
		return d.Decode(&b.Checksum)
	case "Secret":
		return d.Decode(&b.Secret)
	case "SecretNamespace":
		return d.Decode(&b.SecretNamespace)
	case "Labels":
		return d.Decode(&b.Labels)
	case "Blocks":
		return b.parseBlocks(d, beside)
	case "Size", "CompressionMethod", "CreatedTime", "CompleteTime":
		if err := d.Decode(&text); err != nil {
			return err
		}
	default:
		var ignored json.RawMessage
		return d.Decode(&ignored)
	}
	switch key {
	case "Size":
		b.Size, err = parseSize(text)
	case "CompressionMethod":
		b.Compression, err = parseStored(text)
	case "CreatedTime":
		b.Created, err = parseTime(text)
	case "CompleteTime":
		b.Completed, err = parseTime(text)
	}
	return err
}

// parseBlocks reads the list, which may be null.
func (b *Backup) parseBlocks(d *json.Decoder, beside *io.LimitedReader) error {
	token, err := d.Token()
	if err != nil || token == nil {
		return err
	}
	if token != json.Delim('[') {
		return errors.New("they are no list")
	}
	for d.More() {
		beside.N = maxBeside
		var one struct {
			Offset        *int64
			BlockChecksum string
		}
		if err := d.Decode(&one); err != nil {
			return err
		}
		if one.Offset == nil {
			return errors.New("a block has no offset")
		}
		sum, err := parseSum(one.BlockChecksum)
		if err != nil {
			return fmt.Errorf("block at %d: %w", *one.Offset, err)
		}
		b.Blocks = append(b.Blocks, Block{*one.Offset, sum})
	}
	return expect(d, ']')
}
