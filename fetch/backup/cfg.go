package backup

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/internal/jsonscan"
)

// Backup is the backup of one image in a Store: the content of its backing-image.cfg. The cfg is
// written twice: without Blocks before the first block is stored, and with Blocks after the last block.
type Backup struct {
	Name        string            `json:"name"`
	Size        int64             `json:"size"`     // of the image, in bytes
	Checksum    string            `json:"checksum"` // SHA-512 of the image in hex; empty if the writer did not compute it
	Labels      map[string]string `json:"labels,omitempty"`
	Compression Compression       `json:"compression,omitempty"` // default of the blocks; the format of each block file is detected
	Created     time.Time         `json:"created,omitzero"`
	Completed   time.Time         `json:"completed,omitzero"` // zero: blocks may be missing

	// Secret and SecretNamespace name the secret of an encrypted image.
	Secret, SecretNamespace string `json:"-"`

	// Blocks are sorted by offset. The bytes between them are zeros.
	Blocks []Block `json:"-"`

	fingerprint string // of the cfg file, for Restore.CanResume
}

// Block is the position of one block in the image.
type Block struct {
	Offset int64 // a multiple of blockSize
	ID     blockID
}

// Complete reports whether the backup has all blocks.
func (b *Backup) Complete() bool { return !b.Completed.IsZero() }

// Digest returns the checksum of the image. It is the zero Digest if the cfg has no valid checksum.
func (b *Backup) Digest() ident.Digest {
	d, err := ident.ParseDigest(b.Checksum)
	if err != nil || d.Algorithm() != ident.SHA512 {
		return ident.Digest{}
	}
	return d
}

// length returns the length of the block at offset, in bytes.
func (b *Backup) length(offset int64) int { return int(min(blockSize, b.Size-offset)) }

// cfgFile is the content of a cfg. It is compact JSON without a final newline, with the keys in Longhorn's order.
type cfgFile struct {
	Name              string
	Size              int64 `json:",string"`
	BlockCount        int64 `json:",string"`
	Checksum          string
	Labels            map[string]string
	CompressionMethod string
	CreatedTime       string
	CompleteTime      string
	Secret            string
	SecretNamespace   string
	ProcessingBlocks  *processing
	Blocks            []cfgBlock `json:",omitempty"`
}

type processing struct{ Blocks struct{} }

type cfgBlock struct {
	Offset        int64
	BlockChecksum string
}

// marshal returns the cfg as Longhorn writes it.
func (b *Backup) marshal() ([]byte, error) {
	file := cfgFile{
		Name: b.Name, Size: b.Size, BlockCount: int64(len(b.Blocks)), Checksum: b.Checksum, Labels: b.Labels,
		CompressionMethod: string(b.Compression),
		CreatedTime:       formatTime(b.Created), CompleteTime: formatTime(b.Completed),
		Secret: b.Secret, SecretNamespace: b.SecretNamespace,
	}
	if b.Complete() {
		file.ProcessingBlocks = &processing{}
	}
	for _, block := range b.Blocks {
		file.Blocks = append(file.Blocks, cfgBlock{block.Offset, block.ID.String()})
	}
	return json.Marshal(file)
}

func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

func parseTime(s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return time.Time{}, fmt.Errorf("%.40q is not a time", s)
	}
	return t.UTC(), nil
}

// validate returns an error if the backup is not a valid backup of an image. It sorts the blocks. For
// an incomplete backup it checks only the name and the size.
func (b *Backup) validate() error {
	if err := checkName(b.Name); err != nil {
		return err
	}
	if b.Size <= 0 || b.Size%512 != 0 {
		return fmt.Errorf("the size of the image is %d: it must be a positive multiple of 512", b.Size)
	}
	slices.SortFunc(b.Blocks, func(x, y Block) int { return cmp.Compare(x.Offset, y.Offset) })
	for i, block := range b.Blocks {
		switch {
		case block.Offset < 0 || block.Offset >= b.Size:
			return fmt.Errorf("block %s is at %d, which is outside of the image of %d bytes", block.ID, block.Offset, b.Size)
		case block.Offset%blockSize != 0:
			return fmt.Errorf("block %s is at %d, which is not a multiple of %d", block.ID, block.Offset, blockSize)
		case i > 0 && block.Offset == b.Blocks[i-1].Offset:
			return fmt.Errorf("two blocks are at %d", block.Offset)
		}
	}
	return nil
}

func parseSize(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%.40q is not a size", s)
	}
	return n, nil
}

// maxCfg is the maximum size of a cfg. A cfg has about 100 bytes per block, so the limit is enough
// for more than 1 TiB of data.
const maxCfg = 64 << 20

// maxElement is the maximum number of bytes of a value in a cfg: the labels, another key, or a block.
const maxElement = 256 << 10

// parseCfg parses a backing-image.cfg. It returns an error if the file is truncated, is not JSON, or
// does not describe a valid backup. Unknown keys are ignored. It decodes the blocks one by one, so
// it needs little more memory than the block ids.
func parseCfg(r io.Reader) (*Backup, error) { return parseUpTo(r, maxCfg) }

func parseUpTo(r io.Reader, limit int64) (*Backup, error) {
	h := sha256.New()
	limited := &io.LimitedReader{R: r, N: limit + 1}
	s := jsonscan.New(io.TeeReader(limited, h), maxElement)
	b := &Backup{Compression: Gzip} // the default for old files without the key
	err := s.Object(func(key string) error {
		if err := b.parseKey(s, key); err != nil {
			return fmt.Errorf("%.40s: %w", key, err)
		}
		return nil
	})
	if err == nil {
		err = s.Finish()
	}
	switch {
	case limited.N <= 0:
		return nil, fmt.Errorf("it has more than %d bytes", limit)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, errors.New("it is truncated")
	case err != nil:
		return nil, err
	}
	b.fingerprint = hex.EncodeToString(h.Sum(nil))
	return b, b.validate()
}

func (b *Backup) parseKey(s *jsonscan.Scanner, key string) (err error) {
	var text string
	switch key {
	case "Name":
		return s.Decode(&b.Name)
	case "Checksum":
		return s.Decode(&b.Checksum)
	case "Secret":
		return s.Decode(&b.Secret)
	case "SecretNamespace":
		return s.Decode(&b.SecretNamespace)
	case "Labels":
		return s.Decode(&b.Labels)
	case "Blocks":
		return s.Array(func() error { return b.parseBlock(s) })
	case "Size", "CompressionMethod", "CreatedTime", "CompleteTime":
		if err := s.Decode(&text); err != nil {
			return err
		}
	default:
		return s.Skip()
	}
	switch key {
	case "Size":
		b.Size, err = parseSize(text)
	case "CompressionMethod":
		b.Compression, err = parseCfgCompression(text)
	case "CreatedTime":
		b.Created, err = parseTime(text)
	case "CompleteTime":
		b.Completed, err = parseTime(text)
	}
	return err
}

// parseBlock parses an element of the list of blocks.
func (b *Backup) parseBlock(s *jsonscan.Scanner) error {
	var one struct {
		Offset        *int64
		BlockChecksum string
	}
	if err := s.Decode(&one); err != nil {
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
	return nil
}
