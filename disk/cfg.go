package disk

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

const cfgFile = "backing.cfg"

// mtimeLayout is Longhorn's format of a modification time: Go's time.Time.String in UTC. It
// omits trailing zeros of the fraction, and the point with them.
const mtimeLayout = "2006-01-02 15:04:05.999999999 -0700 MST"

// longhornCfg is backing.cfg, key for key as Longhorn's backing image manager writes and
// reads it: compact JSON without a newline at the end. Unknown keys are ignored.
type longhornCfg struct {
	Name             string `json:"name"` // path of the file, not the name of the image
	UUID             string `json:"uuid"`
	Size             int64  `json:"size"`        // bytes of the file
	VirtualSize      int64  `json:"virtualSize"` // bytes that a guest sees; 0: not known
	RealSize         int64  `json:"realSize"`    // bytes allocated on the disk
	ExpectedChecksum string `json:"expectedChecksum"`
	CurrentChecksum  string `json:"currentChecksum"`
	ModificationTime string `json:"modificationTime"`
}

// parseCfg parses a backing.cfg. It returns an error if the file is cut, is not JSON, or has
// values that no image has.
func parseCfg(data []byte) (longhornCfg, error) {
	var c longhornCfg
	if err := json.Unmarshal(data, &c); err != nil {
		return longhornCfg{}, fmt.Errorf("read %s: %w", cfgFile, err)
	}
	if c.Size <= 0 || c.VirtualSize < 0 || c.RealSize < 0 {
		return longhornCfg{}, fmt.Errorf("read %s: no file has such sizes", cfgFile)
	}
	return c, nil
}

// Digest returns the checksum of the file when the cfg was written; the zero Digest if there
// is none, or none that can be parsed.
func (c longhornCfg) Digest() Digest {
	d, err := ParseDigest(c.CurrentChecksum)
	if err != nil || d.Algorithm() != SHA512 {
		return Digest{}
	}
	return d
}

// formatMtime formats t as Longhorn does. Longhorn compares the strings.
func formatMtime(t time.Time) string { return t.UTC().Format(mtimeLayout) }

func (f imageFolder) readCfg() (longhornCfg, error) {
	data, err := readSmall(f.disk.root, f.file(cfgFile))
	if err != nil {
		return longhornCfg{}, err
	}
	return parseCfg(data)
}

// writeCfg describes the ready image to Longhorn.
func (f imageFolder) writeCfg(r Record, expected Digest, info os.FileInfo) error {
	c := longhornCfg{
		Name:             filepath.Join(f.disk.path, f.file(imageFile)),
		UUID:             f.id.UUID,
		Size:             info.Size(),
		VirtualSize:      r.VirtualSize,
		RealSize:         realSize(info),
		CurrentChecksum:  r.SHA512.String(),
		ModificationTime: formatMtime(info.ModTime()),
	}
	if expected.Algorithm() == SHA512 {
		c.ExpectedChecksum = expected.String()
	}
	return f.saveCfg(c)
}

// invalidateCfg makes Longhorn read a failed file before it uses the file. Longhorn trusts a
// file if its mtime is the one in backing.cfg, and bit rot does not change the mtime.
func (f imageFolder) invalidateCfg() error {
	c, err := f.readCfg()
	if err != nil || c.ModificationTime == "" {
		return nil // no valid backing.cfg: Longhorn reads the file anyway
	}
	c.ModificationTime = ""
	return f.saveCfg(c)
}

func (f imageFolder) saveCfg(c longhornCfg) error {
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	defer f.disk.metadata.invalidate(f.id)
	if err := writeDurably(f.disk.root, f.file(cfgFile), data); err != nil {
		return fmt.Errorf("write %s of %s: %w", cfgFile, f.id, err)
	}
	return nil
}

// WriteCfg writes a new backing.cfg from the record of a ready copy, without reading the
// image. expected is the declared digest for Longhorn; zero: none.
func (d *Disk) WriteCfg(id ID, expected Digest) error {
	f := d.image(id)
	r, _, err := f.readRecord()
	if err != nil {
		return err
	}
	if c := d.Stat(id); c.State != Ready || r.Evidence == nil {
		return fmt.Errorf("write %s: %s", cfgFile, c)
	}
	return f.markReady(r, expected, *r.Evidence)
}
