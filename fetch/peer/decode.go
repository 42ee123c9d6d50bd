package peer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
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
	if err := d.state(); err != nil {
		return State{}, fmt.Errorf("read the answer: %w", err)
	}
	return d.s, nil
}

type decoder struct {
	*json.Decoder
	s      State
	disk   Disk // that is being read
	copies int
}

func (d *decoder) state() error {
	err := d.object(func(key string) error {
		switch key {
		case "node":
			return d.Decode(&d.s.Node)
		case "config":
			return d.Decode(&d.s.Config)
		case "clock":
			return d.Decode(&d.s.Clock)
		case "disks":
			return d.array(d.oneDisk)
		}
		return d.skip()
	})
	if err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the state")
	}
	return d.s.check()
}

func (d *decoder) oneDisk() error {
	if len(d.s.Disks) == maxDisks {
		return fmt.Errorf("more than %d disks", maxDisks)
	}
	d.disk = Disk{}
	err := d.object(func(key string) error {
		switch key {
		case "name":
			return d.Decode(&d.disk.Name)
		case "uuid":
			return d.Decode(&d.disk.UUID)
		case "problem":
			return d.Decode(&d.disk.Problem)
		case "unclear":
			return d.Decode(&d.disk.Unclear)
		case "total":
			return d.Decode(&d.disk.Total)
		case "free":
			return d.Decode(&d.disk.Free)
		case "copies":
			return d.array(d.oneCopy)
		}
		return d.skip()
	})
	if err != nil {
		return err
	}
	if err := d.disk.check(); err != nil {
		return err
	}
	d.s.Disks = append(d.s.Disks, d.disk)
	return nil
}

func (d *decoder) oneCopy() error {
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

// object reads an object, calling field behind each key to read what it holds. A
// key that comes twice is an error.
func (d *decoder) object(field func(key string) error) error {
	if err := d.delimiter('{'); err != nil {
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
			return fmt.Errorf("field %q comes twice or is one too many", clean(key, maxName))
		}
		seen = append(seen, key)
		if err := field(key); err != nil {
			return err
		}
	}
	return d.delimiter('}')
}

// array reads an array, calling element to read each; null is an empty one.
func (d *decoder) array(element func() error) error {
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
	return d.delimiter(']')
}

func (d *decoder) delimiter(want json.Delim) error {
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
