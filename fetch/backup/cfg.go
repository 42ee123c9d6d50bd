package backup

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// Backup is one image in a Store: what its backing-image.cfg says. The cfg is
// written without Blocks before the first block, and with them behind the last one.
type Backup struct {
	Name        string
	Size        int64  // bytes of the image
	Checksum    string // SHA-512 of the image in hex, where its writer knew it
	Labels      map[string]string
	Compression Compression // of the blocks, as a rule: each one tells for itself
	Created     time.Time
	Completed   time.Time // zero: not all blocks may be there

	// Secret and SecretNamespace name what an encrypted image was encrypted with.
	Secret, SecretNamespace string

	// Blocks are in the order of their offsets. What is between them is zeros.
	Blocks []Block

	fingerprint string // of the file it was read from
}

// Block is where one block belongs in the image.
type Block struct {
	Offset int64 // a multiple of BlockSize
	Sum    Sum
}

// Complete reports whether all blocks are there.
func (b *Backup) Complete() bool { return !b.Completed.IsZero() }

// Digest returns the checksum of the image, or the zero Digest where none was
// recorded that can be read.
func (b *Backup) Digest() disk.Digest {
	d, err := disk.ParseDigest(b.Checksum)
	if err != nil || d.Algorithm() != disk.SHA512 {
		return disk.Digest{}
	}
	return d
}

// length returns how many bytes of the image the block at offset has.
func (b *Backup) length(offset int64) int { return int(min(BlockSize, b.Size-offset)) }

// cfgFile is the file, key for key as Longhorn writes it: compact JSON without a
// newline at the end, in this order.
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

// Marshal returns the file as Longhorn writes it.
func (b *Backup) Marshal() ([]byte, error) {
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
		file.Blocks = append(file.Blocks, cfgBlock{block.Offset, block.Sum.String()})
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

// check says why the backup cannot be of any image, and sorts its blocks. It
// says nothing about a backup that is not complete but that its size can be.
func (b *Backup) check() error {
	if err := CheckName(b.Name); err != nil {
		return err
	}
	if b.Size <= 0 || b.Size%512 != 0 {
		return fmt.Errorf("the size of the image is %d: it has to be a multiple of 512, and more than 0", b.Size)
	}
	slices.SortFunc(b.Blocks, func(x, y Block) int { return cmp.Compare(x.Offset, y.Offset) })
	for i, block := range b.Blocks {
		switch {
		case block.Offset < 0 || block.Offset >= b.Size:
			return fmt.Errorf("block %s is at %d, outside of the image of %d bytes", block.Sum, block.Offset, b.Size)
		case block.Offset%BlockSize != 0:
			return fmt.Errorf("block %s is at %d, which is not a multiple of %d", block.Sum, block.Offset, BlockSize)
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
