package peer

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/seed-26586806/backing-image-manager/disk"
)

const (
	maxFields  = 256
	maxName    = 253  // bytes of a node's or disk's name, or a disk's uuid
	maxMessage = 1024 // bytes of a text for people, which is cut
	maxSize    = 1 << 50
	maxSpace   = 1 << 60 // bytes of a disk
	maxSeconds = 1e9
)

func (s *State) check() error {
	if err := checkWord("node", s.Node); err != nil {
		return err
	}
	if len(s.Config) > maxName {
		return errors.New("the digest of the configuration is too long")
	}
	s.Config = clean(s.Config, maxName)
	names := make([]string, len(s.Disks))
	for i, d := range s.Disks {
		names[i] = d.Name
	}
	slices.Sort(names)
	if twice := repeated(names); twice != "" {
		return fmt.Errorf("disk %q comes twice", twice)
	}
	slices.SortFunc(s.Disks, func(a, b Disk) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

func (d *Disk) check() error {
	if err := checkWord("disk", d.Name); err != nil {
		return err
	}
	if len(d.UUID) > maxName || d.UUID != clean(d.UUID, maxName) {
		return fmt.Errorf("disk %q: its uuid is none", d.Name)
	}
	d.Total, d.Free = min(max(d.Total, 0), maxSpace), min(max(d.Free, 0), maxSpace)
	d.Problem, d.Unclear = clean(d.Problem, maxMessage), clean(d.Unclear, maxMessage)
	slices.SortFunc(d.Copies, byID)
	for i := range d.Copies[min(1, len(d.Copies)):] {
		if d.Copies[i].ID() == d.Copies[i+1].ID() {
			return fmt.Errorf("disk %q: %s comes twice", d.Name, d.Copies[i].ID())
		}
	}
	return nil
}

func byID(a, b Copy) int {
	if byName := strings.Compare(a.Name, b.Name); byName != 0 {
		return byName
	}
	return strings.Compare(a.UUID, b.UUID)
}

// check says what of a copy has no sense, and mends what need not be refused: words
// that this program does not know yet, and texts that are too long.
func (c *Copy) check() error {
	if err := errors.Join(disk.CheckName(c.Name), disk.CheckUUID(c.UUID)); err != nil {
		return err
	}
	for _, size := range []*int64{&c.Size, &c.VirtualSize, &c.RealSize, &c.PartBytes, &c.PartTotal} {
		if *size < 0 || *size > maxSize { // of one file: what else the node says may be right
			c.State, c.Message = disk.Unknown, fmt.Sprintf("its node tells of a size of %d bytes", *size)
			*size = 0
		}
	}
	switch c.State {
	case disk.Pending, disk.Starting, disk.InProgress, disk.Ready, disk.Failed, disk.Unknown:
	default:
		c.State = disk.Unknown
	}
	if _, err := disk.ParseFormat(string(c.Format)); err != nil {
		c.Format = ""
	}
	if !c.SHA512.IsZero() && c.SHA512.Algorithm() != disk.SHA512 ||
		!c.SHA256.IsZero() && c.SHA256.Algorithm() != disk.SHA256 ||
		!c.Chunks.IsZero() && c.Chunks.Algorithm() != disk.SHA256 {
		return fmt.Errorf("%s: a digest of another algorithm than its name says", c.ID())
	}
	if c.State == disk.Ready && c.SHA512.IsZero() {
		c.State, c.Message = disk.Unknown, "its node calls it ready without a checksum"
	}
	c.Message, c.Using = clean(c.Message, maxMessage), clean(c.Using, maxMessage)
	c.Doing, c.Refuses = clean(c.Doing, maxName), clean(c.Refuses, maxMessage)
	if c.Try != nil {
		c.Try.check()
	}
	return nil
}

func (t *Try) check() {
	t.Action, t.Message = clean(t.Action, maxName), clean(t.Message, maxMessage)
	t.Attempts = min(max(t.Attempts, 0), math.MaxInt32)
	t.Since = min(max(t.Since, -maxSeconds), 0)
	t.Again = min(max(t.Again, -maxSeconds), maxSeconds)
}

// checkWord says why s cannot name a node or a disk.
func checkWord(of, s string) error {
	if s == "" || len(s) > maxName || s != clean(s, maxName) {
		return fmt.Errorf("%s %q: not a name", of, clean(s, maxName))
	}
	return nil
}

// clean returns s for a terminal or a log: cut to n bytes, without control characters.
func clean(s string, n int) string {
	if len(s) > n {
		s = strings.ToValidUTF8(s[:n], "")
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == utf8.RuneError {
			return ' '
		}
		return r
	}, s)
}

// repeated returns the first of sorted words that comes twice, or "".
func repeated(sorted []string) string {
	for i := range sorted[min(1, len(sorted)):] {
		if sorted[i] == sorted[i+1] {
			return sorted[i]
		}
	}
	return ""
}
