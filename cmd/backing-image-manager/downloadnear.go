package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile"
)

// nearSupply is an image on a disk, without a daemon.
type nearSupply struct {
	shelves []shelf
	copy    shelved
	r       *disk.Reader
}

func openNearSupply(paths []string, name string, on []string) (*nearSupply, error) {
	shelves, err := openShelves(paths)
	if err != nil {
		return nil, err
	}
	s := &nearSupply{shelves: shelves}
	copies, err := named(shelves, name)
	if err == nil && len(on) > 0 {
		copies = slices.DeleteFunc(copies, func(c shelved) bool { return !slices.Contains(on, c.Path()) })
		if len(copies) == 0 {
			err = fmt.Errorf("no image %q there", name)
		}
	}
	if err == nil {
		s.copy = pickCopy(copies)
		err = s.copy.notReady()
	}
	if err == nil {
		s.r, err = s.copy.Open(s.copy.ID)
	}
	if err != nil {
		return nil, errors.Join(err, closeShelves(shelves))
	}
	return s, nil
}

// pickCopy takes the copy that answers to a name, as in a list.
func pickCopy(copies []shelved) shelved {
	return slices.MinFunc(copies, func(a, b shelved) int { return compareGenerations(asImage(a), asImage(b)) })
}

// notReady says why there is nothing to read yet, and what leads on, or nil.
func (s shelved) notReady() error {
	c := copyOn(s.Path(), s.Copy, disk.Users{})
	why := strings.TrimSuffix(fmt.Sprintf("%s: %s", c.State, oneLine(c.Message)), ": ")
	switch c.State {
	case disk.Ready:
		return nil
	case disk.Unknown:
		return fmt.Errorf("%s is not ready: it is %s; backing-image verify reads it", s, why)
	case disk.InProgress:
		return fmt.Errorf("%s is not ready: only a part of it is there; a daemon or reconcile goes on with it", s)
	}
	return fmt.Errorf("%s is not ready: it is %s; a daemon or reconcile makes it anew, if it is declared", s, why)
}

func asImage(c shelved) reconcile.ImageStatus {
	return reconcile.ImageStatus{UUID: c.ID.UUID, Copies: []reconcile.CopyStatus{copyOn(c.Path(), c.Copy, disk.Users{})}}
}

func (s *nearSupply) what() offered {
	return offered{s.copy.ID, s.copy.Path(), s.r.Size(), s.copy.SHA512}
}

func (s *nearSupply) manifest(context.Context, func() (*os.File, error)) (*disk.Manifest, error) {
	m, err := s.copy.Manifest(s.copy.ID)
	if errors.Is(err, disk.ErrNoManifest) {
		return nil, nil // the checksum of the whole tells as well, only later
	}
	return m, err
}

func (s *nearSupply) chunks(ctx context.Context, m *disk.Manifest, first int64, put func([]byte) error) error {
	buf := make([]byte, disk.ChunkSize)
	for n := first; n*disk.ChunkSize < s.r.Size(); n++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		chunk, err := s.chunk(m, n, buf)
		if err == nil {
			err = put(chunk)
		}
		if err != nil {
			return err
		}
	}
	return s.r.Unchanged()
}

// chunk reads chunk n, of which a manifest may say that it is zeros.
func (s *nearSupply) chunk(m *disk.Manifest, n int64, buf []byte) ([]byte, error) {
	if m != nil {
		if zero, err := m.Zero(n); zero || err != nil {
			return nil, err
		}
	}
	chunk := buf[:min(disk.ChunkSize, s.r.Size()-n*disk.ChunkSize)]
	if _, err := s.r.ReadAt(chunk, n*disk.ChunkSize); err != nil {
		return nil, fmt.Errorf("read %s: %w", s.copy, err)
	}
	if m == nil {
		return chunk, nil
	}
	want, err := m.At(n)
	if err == nil && disk.SumChunk(chunk) != want {
		err = &damagedError{s.copy.String(), fmt.Errorf("chunk %d is not as its manifest says", n)}
	}
	return chunk, err
}

func (s *nearSupply) close() error { return errors.Join(s.r.Close(), closeShelves(s.shelves)) }

// damagedError says that a copy that is called ready is not right.
type damagedError struct {
	copy string
	err  error
}

func (e *damagedError) Error() string { return fmt.Sprintf("%s is damaged: %v", e.copy, e.err) }

func (e *damagedError) Unwrap() error { return e.err }
