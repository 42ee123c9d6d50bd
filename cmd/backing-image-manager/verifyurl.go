package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile"
)

const verifyAgain = 500 * time.Millisecond

// verifyByDaemon asks a daemon to verify the ready copies of an image, and waits
// until it has.
func verifyByDaemon(ctx context.Context, out io.Writer, f imageFlags, name string) error {
	before, err := f.status(ctx)
	if err != nil {
		return err
	}
	if err := f.verify(ctx, name); err != nil {
		return err
	}
	tick := time.NewTicker(verifyAgain)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return errors.New("stopped waiting; the daemon goes on by itself")
		case <-tick.C:
		}
		now, err := f.status(ctx)
		if err != nil {
			return err
		}
		if !verifying(before, now, name) {
			return reportVerified(out, before, now, name)
		}
	}
}

// verifying reports whether what was asked for after the status before is still to
// be done, or not seen to be done, in the status now.
func verifying(before, now reconcile.Status, name string) bool {
	return now.Time.Equal(before.Time) || slices.ContainsFunc(now.Plan.Actions, func(a reconcile.Action) bool {
		return a.Kind == reconcile.Verify && a.Image == name && a.Node == now.Node
	})
}

// reportVerified says what became of the copies that were ready before. A daemon
// replaces at once what turns out to be damaged; that did not match all the same.
func reportVerified(out io.Writer, before, now reconcile.Status, name string) error {
	var wrong []error
	for _, image := range now.Images {
		if image.Name != name || !image.Declared {
			continue
		}
		for _, c := range image.Copies {
			id := disk.ID{Name: image.Name, UUID: image.UUID}
			was, wasReady := readyBefore(before, id, c)
			switch {
			case !wasReady, c.Node != now.Node: // another daemon verifies those
			case c.State == disk.Ready && c.Damaged.After(was.Damaged):
				wrong = append(wrong, fmt.Errorf("%s on %s was damaged, and has been replaced by one that matches", id, place(c)))
			case c.State == disk.Ready && !c.Verified.After(was.Verified):
				wrong = append(wrong, fmt.Errorf("%s on %s could not be verified: %s", id, place(c), oneLine(c.Message)))
			case c.State == disk.Ready:
				fmt.Fprintf(out, "%s on %s: the bytes match: sha512 %s\n", id, place(c), c.SHA512)
			case c.Running && c.Damaged.After(was.Damaged):
				wrong = append(wrong, fmt.Errorf("%s on %s was damaged, and is being mended: status tells how far that is", id, place(c)))
			default:
				wrong = append(wrong, fmt.Errorf("%s on %s is %s: %s", id, place(c), c.State, oneLine(c.Message)))
			}
		}
	}
	return errors.Join(wrong...)
}

func readyBefore(before reconcile.Status, id disk.ID, c reconcile.CopyStatus) (was reconcile.CopyStatus, ready bool) {
	for _, image := range before.Images {
		if image.Name != id.Name || image.UUID != id.UUID {
			continue
		}
		for _, b := range image.Copies {
			if place(b) == place(c) && b.State == disk.Ready {
				return b, true
			}
		}
	}
	return reconcile.CopyStatus{}, false
}
