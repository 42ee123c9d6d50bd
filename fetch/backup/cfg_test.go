package backup

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

const good = `{"Name":"parrot","Size":"7344128","BlockCount":"2","Checksum":"c0ffee","Labels":{"a":"b"},"CompressionMethod":"lz4",` +
	`"CreatedTime":"2026-11-20T08:31:35Z","CompleteTime":"2026-11-20T08:31:37Z","Secret":"","SecretNamespace":"","ProcessingBlocks":{"Blocks":{}},` +
	`"Blocks":[{"Offset":0,"BlockChecksum":"` + sumA + `"},{"Offset":6291456,"BlockChecksum":"` + sumB + `"}]}`

const (
	sumA = "0d550d08f1a6d561931ca3cecad8e6977c832e59ce52b7d6367695d8fafb95a9"
	sumB = "712b79fb9d3ef0a3717724757dff405691fb2bc2c3c1de1b75c4170d679ed0df"
)

func TestParseLonghornCfg(t *testing.T) {
	b, err := parseCfg(strings.NewReader(good))
	if err != nil {
		t.Fatal(err)
	}
	if !b.Digest().IsZero() || b.Compression != LZ4 || len(b.Blocks) != 2 || b.length(6291456) != 1<<20+4096 {
		t.Errorf("got %+v", b)
	}
	if again, err := b.marshal(); err != nil || string(again) != good {
		t.Errorf("after a round trip: %s (%v)", again, err)
	}
	if want := time.Date(2026, 11, 20, 8, 31, 37, 0, time.UTC); !b.Completed.Equal(want) {
		t.Errorf("completed %v, want %v", b.Completed, want)
	}
	other, err := parseCfg(strings.NewReader(good + "\n"))
	if err != nil || other.fingerprint == b.fingerprint {
		t.Errorf("another file has the same fingerprint (%v)", err)
	}
}

func TestParseInvalidCfg(t *testing.T) {
	for _, c := range []struct{ name, old, new, want string }{ // want "": it is valid
		{"unknown keys", `"Secret":`, `"New":{"a":[1,2]},"Secret":`, ""},
		{"the method is missing", `"CompressionMethod":"lz4",`, ``, ""},
		{"no blocks", `"Blocks":[{"Offset":0,"BlockChecksum":"` + sumA + `"},{"Offset":6291456,"BlockChecksum":"` + sumB + `"}]`, `"Blocks":null`, ""},
		{"blocks in another order", `"Offset":0,`, `"Offset":4194304,`, ""},
		{"size 0", `"7344128"`, `"0"`, "the size of the image is 0"},
		{"size negative", `"7344128"`, `"-512"`, "the size of the image is -512"},
		{"size odd", `"7344128"`, `"7344129"`, "multiple of 512"},
		{"size huge", `"7344128"`, `"9223372036854775808"`, "is not a size"},
		{"size a number", `"7344128"`, `7344128`, "Size: "},
		{"size missing", `"Size":"7344128",`, ``, "the size of the image is 0"},
		{"size in another case", `"Checksum":`, `"size":"512","Checksum":`, ""},
		{"name", `"parrot"`, `"../parrot"`, "is not a valid name of a backup"},
		{"offset after the end", `6291456`, `8388608`, "outside of the image"},
		{"offset negative", `6291456`, `-2097152`, "outside of the image"},
		{"offset odd", `6291456`, `6291457`, "not a multiple"},
		{"offset twice", `6291456`, `0`, "two blocks are at 0"},
		{"offset missing", `"Offset":6291456,`, ``, "a block has no offset"},
		{"checksum upper case", sumA, strings.ToUpper(sumA), "64 lower-case hex digits"},
		{"checksum long", sumA, sumA + "00", "64 lower-case hex digits"},
		{"method", `"lz4"`, `"zstd"`, `"zstd" is not one of`},
		{"time", `"2026-11-20T08:31:37Z"`, `"yesterday"`, "is not a time"},
		{"JSON array", good, `[]`, "want an object"},
		{"empty file", good, ``, "it is truncated"},
		{"text after the end", good, good + "{}", "there is more after the document"},
		{"blocks not a list", `"Blocks":[`, `"Blocks":{"a":[`, "want an array"},
		{"HTML", good, "<html>", "invalid character"},
	} {
		text := strings.Replace(good, c.old, c.new, 1)
		_, err := parseCfg(strings.NewReader(text))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
	for cut := range len(good) {
		if _, err := parseCfg(strings.NewReader(good[:cut])); err == nil {
			t.Fatalf("truncated to %d bytes: no error", cut)
		}
	}
}

func TestParseCfgSizeLimit(t *testing.T) {
	if _, err := parseUpTo(strings.NewReader(good), int64(len(good))); err != nil {
		t.Error(err)
	}
	if _, err := parseUpTo(strings.NewReader(good), int64(len(good)-1)); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("got %v", err)
	}
}

// TestParseCfgElementLimit checks that only the number of blocks may be large: anyone with write
// access to the Store can write a cfg.
func TestParseCfgElementLimit(t *testing.T) {
	race.Skip(t)
	size := fmt.Sprintf(`"Size":"%d",`, 100_000*int64(blockSize))
	var blocks, labels strings.Builder
	for n := range int64(100_000) {
		fmt.Fprintf(&blocks, `,{"Offset":%d,"BlockChecksum":"%064x"}`, n*blockSize, n)
		fmt.Fprintf(&labels, `,"%011d":""`, n)
	}
	for what, text := range map[string]string{
		"blocks": `{"Name":"a1",` + size + `"Blocks":[` + blocks.String()[1:] + `],"Secret":""}`,
		"keys":   `{"Name":"a1",` + size + strings.ReplaceAll(labels.String()[1:], `""`, `1`) + `}`, // are passed over
	} {
		if _, err := parseCfg(strings.NewReader(text)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, text := range map[string]string{
		"labels":     `{"Name":"a1",` + size + `"Labels":{` + labels.String()[1:] + `}}`,
		"after":      `{"Name":"a1",` + size + `"Blocks":[{"Offset":0,"BlockChecksum":"` + blockID{}.String() + `"}],"Labels":{` + labels.String()[1:] + `}}`,
		"ignored":    `{"Name":"a1",` + size + `"Other":"` + strings.Repeat("x", 2*maxElement) + `"}`,
		"in a block": `{"Name":"a1",` + size + `"Blocks":[{"Offset":0,"Other":"` + strings.Repeat("x", 2*maxElement) + `"}]}`,
		"never ends": `{"Name":"` + strings.Repeat("x", 2*maxElement),
	} {
		if _, err := parseCfg(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), "an element is too large") {
			t.Errorf("%s: got %.200v", what, err)
		}
	}
}

func TestURL(t *testing.T) {
	for _, c := range []struct{ address, target, name string }{ // target "": it is invalid
		{"s3://bucket@us-east-1/path/?backingImage=parrot", "s3://bucket@us-east-1/path/", "parrot"},
		{"nfs://host:/opt/store?nfsOptions=vers%3D4&backingImage=parrot-1.2", "nfs://host:/opt/store?nfsOptions=vers%3D4", "parrot-1.2"},
		{"/mnt/backups?backingImage=Parrot", "/mnt/backups", "Parrot"},
		{"/mnt/backups?backingImage=p%61rrot", "/mnt/backups", "parrot"},
		{"s3://bucket/path", "", ""},
		{"s3://bucket/path?backingImage=", "", ""},
		{"s3://bucket/path?backingImage=../x", "", ""},
		{"s3://bucket/path?backingImage=%2e%2e%2fx", "", ""},
		{"s3://bucket/path?backingImage=a/b", "", ""},
		{"s3://bucket/path?backingImage=one&backingImage=two", "", ""},
		{"s3://bucket/path?backingImage=%zz", "", ""},
		{"s3://bucket/path?backingImage=" + strings.Repeat("a", 65), "", ""},
		{"?backingImage=parrot", "", ""},
	} {
		target, name, err := ParseURL(c.address)
		if (err == nil) != (c.target != "") || target != c.target || name != c.name {
			t.Errorf("%s: got %q, %q (%v); want %q, %q", c.address, target, name, err, c.target, c.name)
		}
		if c.target != "" && !strings.Contains(c.address, "%61") && URL(target, name) != c.address {
			t.Errorf("%s: after a round trip it is %s", c.address, URL(target, name))
		}
	}
}

// FuzzParseCfg checks that a cfg that is parsed without an error can be written and parsed again, and
// that all its blocks are inside the image and in the block folder.
func FuzzParseCfg(f *testing.F) {
	f.Add([]byte(good))
	cfgs, err := filepath.Glob("testdata/cfg/*")
	if err != nil || len(cfgs) == 0 {
		f.Fatal("no initial cfgs", err)
	}
	for _, name := range cfgs {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := parseCfg(bytes.NewReader(data))
		if err != nil {
			return
		}
		end := int64(0)
		for _, block := range b.Blocks {
			if block.Offset < end || b.length(block.Offset) <= 0 || block.Offset+int64(b.length(block.Offset)) > b.Size {
				t.Errorf("block at %d of %d bytes, after %d", block.Offset, b.Size, end)
			}
			end = block.Offset + int64(b.length(block.Offset))
			if !fs.ValidPath(block.ID.key()) {
				t.Errorf("key %q", block.ID.key())
			}
		}
		if !fs.ValidPath(cfgKey(b.Name)) || strings.Count(cfgKey(b.Name), "/") != 4 {
			t.Errorf("key %q", cfgKey(b.Name))
		}
		again, err := b.marshal()
		if err != nil {
			t.Fatal(err)
		}
		c, err := parseCfg(bytes.NewReader(again))
		if err != nil || c.Size != b.Size || len(c.Blocks) != len(b.Blocks) || c.Complete() != b.Complete() {
			t.Errorf("after a round trip: %s (%v)", again, err)
		}
	})
}
