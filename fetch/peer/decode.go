package peer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// What one node may tell. It is far beyond what a node has, and small enough for
// the memory of those who listen.
const (
	maxDisks  = 1024
	maxCopies = 1 << 17 // on all disks together
)

// decodeState reads a State that another node wrote. Fields that it does not know
// are skipped; what has no sense is an error. It checks piece by piece, so that
// nonsense of any size costs no more than its first piece.
func decodeState(r io.Reader) (State, error) {
	d := &decoder{Decoder: json.NewDecoder(r)}
	if err := d.decodeState(); err != nil {
		return State{}, fmt.Errorf("read the answer: %w", err)
	}
	return d.result, nil
}

type decoder struct {
	*json.Decoder
	result State
	disk   Disk // that is being read
	copies int
}

func (d *decoder) decodeState() error {
	err := d.decodeObject(func(key string) error {
		switch key {
		case "node":
			return d.Decode(&d.result.Node)
		case "config":
			return d.Decode(&d.result.Config)
		case "clock":
			return d.Decode(&d.result.Clock)
		case "disks":
			return d.decodeArray(d.decodeDisk)
		}
		return d.skip()
	})
	if err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the state")
	}
	return d.result.check()
}

func (d *decoder) decodeDisk() error {
	if len(d.result.Disks) == maxDisks {
		return fmt.Errorf("more than %d disks", maxDisks)
	}
	d.disk = Disk{}
	err := d.decodeObject(func(key string) error {
		switch key {
		case "name":
			return d.Decode(&d.disk.Name)
		case "uuid":
			return d.Decode(&d.disk.UUID)
		case "problem":
			return d.Decode(&d.disk.Problem)
		case "unclear":
			return d.Decode(&d.disk.UsageUnknown)
		case "total":
			return d.Decode(&d.disk.Total)
		case "free":
			return d.Decode(&d.disk.Free)
		case "copies":
			return d.decodeArray(d.decodeCopy)
		}
		return d.skip()
	})
	if err != nil {
		return err
	}
	if err := d.disk.check(); err != nil {
		return err
	}
	d.result.Disks = append(d.result.Disks, d.disk)
	return nil
}

func (d *decoder) decodeCopy() error {
	if d.copies++; d.copies > maxCopies {
		return fmt.Errorf("more than %d copies", maxCopies)
	}
	var c Copy
	if err := d.Decode(&c); err != nil {
		return fmt.Errorf("copy %d: %w", d.copies, err)
	}
	if err := c.check(); err != nil {
		return fmt.Errorf("copy %d: %w", d.copies, err)
	}
	d.disk.Copies = append(d.disk.Copies, c)
	return nil
}

// decodeObject reads an object, calling field behind each key to read what it holds. A
// key that comes twice is an error.
func (d *decoder) decodeObject(field func(key string) error) error {
	if err := d.expect('{'); err != nil {
		return err
	}
	var seen []string
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return err
		}
		key := t.(string) // the decoder lets nothing else be a key
		if slices.Contains(seen, key) || len(seen) == maxFields {
			return fmt.Errorf("field %q comes twice or is one too many", printable(key, maxName))
		}
		seen = append(seen, key)
		if err := field(key); err != nil {
			return err
		}
	}
	return d.expect('}')
}

// decodeArray reads an array, calling element to read each; null is an empty one.
func (d *decoder) decodeArray(element func() error) error {
	t, err := d.Token()
	if err != nil || t == nil {
		return err
	}
	if t != json.Delim('[') {
		return fmt.Errorf("%v where a list begins", t)
	}
	for d.More() {
		if err := element(); err != nil {
			return err
		}
	}
	return d.expect(']')
}

func (d *decoder) expect(want json.Delim) error {
	t, err := d.Token()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err == nil && t != want {
		err = fmt.Errorf("something else where %q has to stand", want)
	}
	return err
}

func (d *decoder) skip() error {
	var unknown json.RawMessage
	return d.Decode(&unknown)
}

const (
	maxFields  = 256
	maxName    = 253  // bytes of a node's or disk's name, or a disk's uuid
	maxMessage = 1024 // bytes of a text for people, which is cut
	maxSize    = 1 << 50
	maxSpace   = 1 << 60 // bytes of a disk
	maxSeconds = 1e9
)

func (s *State) check() error {
	if err := checkNodeOrDiskName("node", s.Node); err != nil {
		return err
	}
	if len(s.Config) > maxName {
		return errors.New("the digest of the configuration is too long")
	}
	s.Config = printable(s.Config, maxName)
	names := make([]string, len(s.Disks))
	for i, d := range s.Disks {
		names[i] = d.Name
	}
	slices.Sort(names)
	if twice := firstDuplicate(names); twice != "" {
		return fmt.Errorf("disk %q comes twice", twice)
	}
	slices.SortFunc(s.Disks, func(a, b Disk) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

func (d *Disk) check() error {
	if err := checkNodeOrDiskName("disk", d.Name); err != nil {
		return err
	}
	if len(d.UUID) > maxName || d.UUID != printable(d.UUID, maxName) {
		return fmt.Errorf("disk %q: its uuid is none", d.Name)
	}
	d.Total, d.Free = min(max(d.Total, 0), maxSpace), min(max(d.Free, 0), maxSpace)
	d.Problem, d.UsageUnknown = printable(d.Problem, maxMessage), printable(d.UsageUnknown, maxMessage)
	slices.SortFunc(d.Copies, compareByID)
	for i := range d.Copies[min(1, len(d.Copies)):] {
		if d.Copies[i].ID() == d.Copies[i+1].ID() {
			return fmt.Errorf("disk %q: %s comes twice", d.Name, d.Copies[i].ID())
		}
	}
	return nil
}

func compareByID(a, b Copy) int {
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
		!c.ManifestDigest.IsZero() && c.ManifestDigest.Algorithm() != disk.SHA256 {
		return fmt.Errorf("%s: a digest of another algorithm than its name says", c.ID())
	}
	if c.State == disk.Ready && c.SHA512.IsZero() {
		c.State, c.Message = disk.Unknown, "its node calls it ready without a checksum"
	}
	c.Message, c.UsedBy = printable(c.Message, maxMessage), printable(c.UsedBy, maxMessage)
	c.Action, c.Rejection = printable(c.Action, maxName), printable(c.Rejection, maxMessage)
	if c.Failure != nil {
		c.Failure.check()
	}
	return nil
}

func (t *Failure) check() {
	t.Action, t.Message = printable(t.Action, maxName), printable(t.Message, maxMessage)
	t.Attempts = min(max(t.Attempts, 0), math.MaxInt32)
	t.Since = min(max(t.Since, -maxSeconds), 0)
	t.RetryIn = min(max(t.RetryIn, -maxSeconds), maxSeconds)
}

// checkNodeOrDiskName says why s cannot name a node or a disk.
func checkNodeOrDiskName(of, s string) error {
	if s == "" || len(s) > maxName || s != printable(s, maxName) {
		return fmt.Errorf("%s %q: not a name", of, printable(s, maxName))
	}
	return nil
}

// printable returns s for a terminal or a log: cut to n bytes, without control characters.
func printable(s string, n int) string {
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

// firstDuplicate returns the first of sorted words that comes twice, or "".
func firstDuplicate(sorted []string) string {
	for i := range sorted[min(1, len(sorted)):] {
		if sorted[i] == sorted[i+1] {
			return sorted[i]
		}
	}
	return ""
}
