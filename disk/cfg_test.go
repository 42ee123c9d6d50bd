package disk

import (
	"bytes"
	"context"
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// TestCfgFormatEqualsLonghorns compares a written cfg with a file of Longhorn, byte for byte.
func TestCfgFormatEqualsLonghorns(t *testing.T) {
	c := longhornCfg{
		Name: "/data/backing-images/parrot-6846a0b2/backing", UUID: "6846a0b2",
		Size: 8388608, VirtualSize: 8388608, RealSize: 1048576,
		CurrentChecksum:  strings.Repeat("ab", 64),
		ModificationTime: formatMtime(time.Date(2026, 11, 20, 8, 28, 32, 773908910, time.UTC)),
	}
	got, err := json.Marshal(c)
	want := `{"name":"/data/backing-images/parrot-6846a0b2/backing","uuid":"6846a0b2","size":8388608,` +
		`"virtualSize":8388608,"realSize":1048576,"expectedChecksum":"","currentChecksum":"` + strings.Repeat("ab", 64) +
		`","modificationTime":"2026-11-20 08:28:32.77390891 +0000 UTC"}`
	if err != nil || string(got) != want {
		t.Errorf("got  %s\nwant %s (error %v)", got, want, err)
	}
}

// realCfgs returns backing.cfg files that Longhorn wrote, and a truncated one, by case.
func realCfgs(t testing.TB) map[string][]byte {
	t.Helper()
	archives, err := filepath.Glob("testdata/longhorn/*.tar.zst")
	if err != nil || len(archives) == 0 {
		t.Fatalf("no archives: %v", err)
	}
	cfgs := map[string][]byte{}
	for _, archive := range archives {
		d := unpack(t, archive)
		found, _ := filepath.Glob(filepath.Join(d.Path(), imagesFolder, "*", cfgFile))
		for _, name := range found {
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			cfgs[strings.TrimSuffix(filepath.Base(archive), ".tar.zst")] = data
		}
	}
	return cfgs
}

func TestCfgsOfLonghornRoundTrip(t *testing.T) {
	for name, data := range realCfgs(t) {
		c, err := parseCfg(data)
		if torn := name == "adopt-torn-cfg"; torn != (err != nil) {
			t.Errorf("%s: error %v", name, err)
		} else if torn {
			continue
		}
		if again, err := json.Marshal(c); err != nil || !bytes.Equal(again, data) {
			t.Errorf("%s: got\n%s\nwant\n%s (error %v)", name, again, data, err)
		}
		if c.Digest().IsZero() {
			t.Errorf("%s: no digest in %s", name, data)
		}
	}
}

func TestMtimeFormatEqualsLonghorns(t *testing.T) {
	for _, test := range []struct {
		nanoseconds int
		want        string
	}{
		{0, "2026-11-20 08:28:20 +0000 UTC"},
		{500_000_000, "2026-11-20 08:28:20.5 +0000 UTC"},
		{100, "2026-11-20 08:28:20.0000001 +0000 UTC"},
		{1, "2026-11-20 08:28:20.000000001 +0000 UTC"},
		{999_999_999, "2026-11-20 08:28:20.999999999 +0000 UTC"},
		{123_450_000, "2026-11-20 08:28:20.12345 +0000 UTC"},
	} {
		at := time.Date(2026, 11, 20, 8, 28, 20, test.nanoseconds, time.UTC).In(time.FixedZone("X", 3600))
		got := formatMtime(at)
		if got != test.want || got != at.UTC().String() {
			t.Errorf("%d ns: got %q, want %q; Go prints %q", test.nanoseconds, got, test.want, at.UTC())
		}
		if back, err := time.Parse(mtimeLayout, got); err != nil || !back.Equal(at) {
			t.Errorf("%q is parsed as %v, error %v", got, back, err)
		}
	}
}

// checkReusable returns an error if Longhorn would verify or delete the file. It implements the
// conditions under which Longhorn uses a file without reading it.
func checkReusable(file string, declaredSize int64, expected string) error {
	stat, err := os.Stat(file)
	if err != nil {
		return err
	}
	if declaredSize > 0 && stat.Size() != declaredSize {
		return fmt.Errorf("the size is %d, the declared size %d", stat.Size(), declaredSize)
	}
	text, err := os.ReadFile(file + ".cfg")
	if err != nil {
		return err
	}
	var cfg struct{ CurrentChecksum, ModificationTime string }
	if err := json.Unmarshal(text, &cfg); err != nil {
		return err
	}
	if mtime := stat.ModTime().UTC().String(); cfg.ModificationTime != mtime {
		return fmt.Errorf("the cfg has the mtime %q, the file %q", cfg.ModificationTime, mtime)
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha512.New()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	if sum := hex.EncodeToString(h.Sum(nil)); sum != cfg.CurrentChecksum || expected != "" && sum != expected {
		return fmt.Errorf("the cfg has the checksum %s, declared is %s, the file has %s", cfg.CurrentChecksum, expected, sum)
	}
	return nil
}

func TestLonghornAcceptsOurImages(t *testing.T) {
	image := sparseImage(2*ChunkSize + 512)
	want := digest512(image)
	d := newDisk(t)
	p := openPart(t, d, PartOptions{})
	fill(t, p, image)
	if _, err := p.Commit(want); err != nil {
		t.Fatal(err)
	}
	file := imagePath(d, imageFile)
	if err := checkReusable(file, int64(len(image)), want.String()); err != nil {
		t.Errorf("after commit: %v", err)
	}
	for _, mtime := range []time.Time{time.Unix(1e9, 0), time.Unix(1e9, 5e8), time.Unix(1e9, 100), time.Unix(1e9, 999_999_999)} {
		if err := os.Chtimes(file, mtime, mtime); err != nil {
			t.Fatal(err)
		}
		if checkReusable(file, 0, "") == nil {
			t.Fatalf("mtime %v: Longhorn would not detect the change", mtime)
		}
		if _, err := d.Verify(context.Background(), testID, Expected{}, func(int64) {}); err != nil {
			t.Fatal(err)
		}
		if err := checkReusable(file, int64(len(image)), want.String()); err != nil {
			t.Errorf("mtime %v, after verify: %v", mtime, err)
		}
	}
	if err := os.Remove(file + ".cfg"); err != nil {
		t.Fatal(err)
	}
	if err := d.WriteCfg(testID, want); err != nil {
		t.Fatal(err)
	}
	if err := checkReusable(file, int64(len(image)), want.String()); err != nil {
		t.Errorf("after WriteCfg: %v", err)
	}
}

// TestInvalidCfgIsReplaced checks that Verify makes an intact image with an invalid backing.cfg
// ready, and writes a valid backing.cfg.
func TestInvalidCfgIsReplaced(t *testing.T) {
	t.Parallel()
	image := sparseImage(ChunkSize)
	sum := digest512(image).String()
	good := fmt.Sprintf(`{"name":"x","uuid":"6846a0b2","size":%d,"currentChecksum":%q,"modificationTime":"long ago"}`, len(image), sum)
	for name, text := range map[string]string{
		"no bytes":                    "",
		"a truncated one":             good[:len(good)/2],
		"zeros":                       strings.Repeat("\x00", 300),
		"binary":                      "\x7fELF\x02\x01\xff\xfe",
		"a JSON array":                `[1,2]`,
		"a number":                    `7`,
		"null":                        `null`,
		"an empty object":             `{}`,
		"a size that is a string":     `{"size":"1048576","currentChecksum":"` + sum + `"}`,
		"a checksum that is an array": `{"size":1048576,"currentChecksum":[1]}`,
		"a checksum that is short":    `{"size":1048576,"currentChecksum":"abcd"}`,
		"a size below zero":           `{"size":-1}`,
		"a fraction":                  `{"size":1048576.5}`,
		"a number that is too long":   `{"size":99999999999999999999999}`,
		"bytes after it":              good + "x",
		"two of them":                 good + good,
		"an old mtime":                good,
		"unknown keys":                good[:len(good)-1] + `,"color":"green","nested":{"a":[1]}}`,
		"larger than maxSmallFile":    `{"x":"` + strings.Repeat("x", maxSmallFile) + `"}`,
	} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t)
			err := errors.Join(os.MkdirAll(filepath.Dir(imagePath(d, imageFile)), 0o755),
				os.WriteFile(imagePath(d, imageFile), image, 0o644), os.WriteFile(imagePath(d, cfgFile), []byte(text), 0o644))
			if err != nil {
				t.Fatal(err)
			}
			if c := d.Stat(testID); c.State != model.Unknown || c.Owned || c.HasCfg {
				t.Errorf("before: %+v", c)
			}
			c, err := d.Verify(context.Background(), testID, Expected{}, func(int64) {})
			if err != nil || c.State != model.Ready || c.SHA512.String() != sum || !c.HasCfg {
				t.Errorf("after: %+v, error %v", c, err)
			}
			if err := checkReusable(imagePath(d, imageFile), int64(len(image)), sum); err != nil {
				t.Error(err)
			}
		})
	}
}

// FuzzParseCfg checks for any bytes that parseCfg does not panic, that the digest is a SHA-512 or
// zero, and that a parsed cfg survives a round trip.
func FuzzParseCfg(f *testing.F) {
	for _, data := range realCfgs(f) {
		f.Add(data)
	}
	f.Add([]byte(`{"name":"<&>\u2028","size":1,"currentChecksum":"sha256:` + strings.Repeat("0", 64) + `"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parseCfg(data)
		if err != nil {
			return
		}
		if d := c.Digest(); !d.IsZero() && d.Algorithm() != ident.SHA512 {
			t.Errorf("digest %s", d)
		}
		if c.Size <= 0 || c.VirtualSize < 0 || c.RealSize < 0 {
			t.Errorf("the cfg %+v has impossible sizes", c)
		}
		text, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := parseCfg(text); err != nil || again != c {
			t.Errorf("%+v was written as %s, which reads as %+v, error %v", c, text, again, err)
		}
	})
}

// TestLonghornMustReadDamagedImage checks that Longhorn does not trust an image that Verify found
// damaged. Longhorn trusts a backing.cfg with the mtime of the file, so Verify must change this
// mtime.
func TestLonghornMustReadDamagedImage(t *testing.T) {
	d := newDisk(t)
	image := sparseImage(ChunkSize)
	readyImage(t, d, image)
	info, err := os.Stat(imagePath(d, imageFile))
	if err != nil {
		t.Fatal(err)
	}
	poke(t, imagePath(d, imageFile), 5)
	if err := os.Chtimes(imagePath(d, imageFile), info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	verifyFails(t, d)
	cfg, err := d.image(testID).readCfg()
	if err != nil || cfg.ModificationTime == formatMtime(info.ModTime()) || cfg.Digest() != digest512(image) {
		t.Errorf("cfg of a damaged file is %+v, error %v", cfg, err)
	}
	var fetched []int64
	if c, err := d.Repair(context.Background(), testID, ident.Digest{}, fetchFrom(image, &fetched), func(int64) {}); err != nil || !c.HasCfg {
		t.Errorf("repaired: %+v, error %v", c, err)
	}
}
