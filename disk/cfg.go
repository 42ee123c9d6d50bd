package disk

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

const cfgFile = "backing.cfg"

// mtimeLayout is Longhorn's format of a modification time: Go's time.Time.String in UTC. It omits
// trailing zeros of the fraction, and also the decimal point if the fraction is zero.
const mtimeLayout = "2006-01-02 15:04:05.999999999 -0700 MST"

// longhornCfg is backing.cfg. It has the keys and the form that Longhorn's backing image manager
// writes and reads: compact JSON without a newline at the end. Unknown keys are ignored.
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

// parseCfg parses a backing.cfg. It returns an error if the file is truncated, is not JSON, or has
// impossible sizes.
func parseCfg(data []byte) (longhornCfg, error) {
	var c longhornCfg
	if err := json.Unmarshal(data, &c); err != nil {
		return longhornCfg{}, fmt.Errorf("read %s: %w", cfgFile, err)
	}
	if c.Size <= 0 || c.VirtualSize < 0 || c.RealSize < 0 {
		return longhornCfg{}, fmt.Errorf("read %s: a size is negative or impossible", cfgFile)
	}
	return c, nil
}

// Digest returns the checksum that the file had when the cfg was written. It is the zero Digest if
// the cfg has no checksum, or one that cannot be parsed.
func (c longhornCfg) Digest() ident.Digest {
	d, err := ident.ParseDigest(c.CurrentChecksum)
	if err != nil || d.Algorithm() != ident.SHA512 {
		return ident.Digest{}
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

// writeCfg writes the backing.cfg of a ready image, for Longhorn.
func (f imageFolder) writeCfg(r Record, expected ident.Digest, info os.FileInfo) error {
	c := longhornCfg{
		Name:             filepath.Join(f.disk.path, f.file(imageFile)),
		UUID:             f.id.UUID,
		Size:             info.Size(),
		VirtualSize:      r.VirtualSize,
		RealSize:         realSize(info),
		CurrentChecksum:  r.SHA512.String(),
		ModificationTime: formatMtime(info.ModTime()),
	}
	if expected.Algorithm() == ident.SHA512 {
		c.ExpectedChecksum = expected.String()
	}
	return f.saveCfg(c)
}

// invalidateCfg clears the mtime in backing.cfg, so that Longhorn verifies the failed file before it
// uses the file. Longhorn trusts a file whose mtime equals the mtime in backing.cfg, and bit rot does
// not change the mtime of a file.
func (f imageFolder) invalidateCfg() error {
	c, err := f.readCfg()
	if err != nil || c.ModificationTime == "" {
		return nil // without a valid backing.cfg, Longhorn verifies the file anyway
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

// WriteCfg writes a new backing.cfg from the record of a ready copy. It does not read the image.
// expected is the digest to declare to Longhorn; zero: none.
func (d *Disk) WriteCfg(id ident.ID, expected ident.Digest) error {
	f := d.image(id)
	r, _, err := f.readRecord()
	if err != nil {
		return err
	}
	if c := d.Stat(id); c.State != model.Ready || r.Evidence == nil {
		return fmt.Errorf("write %s: %s", cfgFile, c)
	}
	return f.markReady(r, expected, *r.Evidence)
}
