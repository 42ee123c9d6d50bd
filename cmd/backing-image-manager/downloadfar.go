package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/reconcile"
)

// farSupply is an image on the disks of a daemon's node. It is asked for as other nodes
// do, by chunks that the manifest tells to be right.
type farSupply struct {
	offered
	client  *peer.Client
	sources []peer.Source
	wrong   map[string]bool // disks that sent what is not right
}

func openFarSupply(ctx context.Context, c caller, name string, on []string) (*farSupply, error) {
	status, err := c.status(ctx)
	if err != nil {
		return nil, err
	}
	image, copies, err := pickReady(status, name, on)
	if err != nil {
		return nil, err
	}
	token, config, err := c.credentials()
	if err != nil {
		return nil, err
	}
	first := copies[0]
	s := &farSupply{
		offered: offered{disk.ID{Name: image.Name, UUID: image.UUID}, place(first), first.Size, first.SHA512},
		client:  peer.NewVisitor(token, config), wrong: map[string]bool{},
	}
	for _, on := range copies {
		if on.SHA512 == first.SHA512 {
			s.sources = append(s.sources, peer.Source{
				Address: peer.Address{Node: status.Node, URL: c.url}, Disk: on.Disk, ID: s.ID, Chunks: on.Chunks,
			})
		}
	}
	return s, nil
}

// pickReady returns the image that answers to a name, and its ready copies on the node
// that was asked, of which there is one at least.
func pickReady(s reconcile.Status, name string, on []string) (reconcile.ImageStatus, []reconcile.CopyStatus, error) {
	var found []reconcile.ImageStatus
	for _, image := range s.Images {
		id := disk.ID{Name: image.Name, UUID: image.UUID}
		image.Copies = copiesOn(image.Copies, on)
		if (image.Name == name || id.String() == name) && (len(on) == 0 || len(image.Copies) > 0) {
			found = append(found, image)
		}
	}
	if len(found) == 0 {
		return reconcile.ImageStatus{}, nil, fmt.Errorf("no image %s: node %s knows of none%s", name, s.Node, onText(on))
	}
	image := slices.MinFunc(found, compareGenerations)
	ready := slices.DeleteFunc(slices.Clone(image.Copies), func(c reconcile.CopyStatus) bool {
		return c.Node != s.Node || c.State != disk.Ready || c.Leaving || c.Chunks.IsZero()
	})
	if len(ready) == 0 {
		return image, nil, nothingReady(s, image)
	}
	return image, ready, nil
}

func onText(on []string) string {
	if len(on) == 0 {
		return ""
	}
	return " on " + strings.Join(on, ", ")
}

// nothingReady says why the asked node has nothing to give, and who has.
func nothingReady(s reconcile.Status, image reconcile.ImageStatus) error {
	id := disk.ID{Name: image.Name, UUID: image.UUID}
	var here, there []string
	for _, c := range image.Copies {
		switch {
		case c.Node == s.Node && c.State == disk.Ready && c.Leaving:
			here = append(here, c.Disk+" is about to remove it")
		case c.Node == s.Node && c.State == disk.Ready:
			here = append(here, "the chunk manifest on "+c.Disk+" has yet to be made")
		case c.Node == s.Node:
			here = append(here, strings.TrimSuffix(fmt.Sprintf("%s on %s: %s", c.State, c.Disk, oneLine(c.Message)), ": "))
		case c.State == disk.Ready && !c.Leaving:
			there = append(there, place(c)+" has it: ask its daemon"+askAt(s, c.Node))
		}
	}
	why := cmp.Or(strings.Join(here, "; "), oneLine(image.Message), "it has no copy")
	return errors.New(strings.Join(append([]string{fmt.Sprintf("%s is not ready on node %s: %s", id, s.Node, why)}, there...), "; "))
}

func askAt(s reconcile.Status, node string) string {
	for _, p := range s.Peers {
		if p.Node == node && p.Address != "" {
			return " with --url " + withoutSecrets(p.Address)
		}
	}
	return ""
}

func (s *farSupply) what() offered { return s.offered }

func (s *farSupply) pull() *peer.Pull {
	return &peer.Pull{
		Client: s.client, Sources: func() []peer.Source { return s.sources }, Aside: time.Second, Final: s.final,
	}
}

// final reports whether all copies that there are have turned out to be damaged.
func (s *farSupply) final(err error) bool {
	if wrong, ok := errors.AsType[*peer.WrongError](err); ok {
		s.wrong[wrong.Disk] = true
	}
	return len(s.wrong) == len(s.sources)
}

func (s *farSupply) manifest(ctx context.Context, file func() (*os.File, error)) (*disk.Manifest, error) {
	m, err := s.pull().Manifest(ctx, s.size, func(r io.Reader, size int64, want disk.Digest) (*disk.Manifest, error) {
		f, err := file()
		if err != nil {
			return nil, err
		}
		return disk.ReceiveManifest(f, r, size, want)
	})
	return m, s.explain(err)
}

func (s *farSupply) chunks(ctx context.Context, m *disk.Manifest, first int64, put func([]byte) error) error {
	return s.explain(s.pull().Chunks(ctx, m, first, func(_ int64, chunk []byte) error { return put(chunk) }))
}

func (s *farSupply) explain(err error) error {
	if _, ok := errors.AsType[*peer.WrongError](err); ok {
		return &damagedError{s.ID.String(), err}
	}
	return err
}

func (s *farSupply) close() error {
	s.client.Close()
	return nil
}
