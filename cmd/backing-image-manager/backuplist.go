package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch/backup"
)

// storedView is one backup as it is printed: a stable interface.
type storedView struct {
	Name        string            `json:"name"`
	Size        int64             `json:"size"` // bytes of the image
	Checksum    string            `json:"checksum"`
	Labels      map[string]string `json:"labels,omitempty"`
	Compression string            `json:"compression,omitempty"`
	Blocks      int               `json:"blocks"`
	Created     time.Time         `json:"created,omitzero"`
	Completed   time.Time         `json:"completed,omitzero"` // missing: it cannot be restored
	URL         string            `json:"url,omitempty"`      // what to restore it by
	Error       string            `json:"error,omitempty"`    // why nothing else is known
}

func viewStored(b *backup.Backup) storedView {
	return storedView{
		Name: b.Name, Size: b.Size, Checksum: b.Checksum, Labels: b.Labels, Compression: string(b.Compression),
		Blocks: len(b.Blocks), Created: b.Created, Completed: b.Completed,
	}
}

// listBackups prints what the store has. A backup that cannot be read hides no other.
func listBackups(ctx context.Context, store backup.Store, out printer) error {
	names, err := backup.Names(ctx, store)
	if err != nil {
		return err
	}
	views := make([]storedView, 0, len(names))
	rows := [][]string{{"NAME", "SIZE", "BLOCKS", "COMPRESSION", "COMPLETED", "MESSAGE"}}
	for _, name := range names {
		b, err := backup.Inspect(ctx, store, name)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil && b == nil: // it has just gone
			continue
		case err != nil:
			views = append(views, storedView{Name: name, Error: oneLine(err.Error())})
			rows = append(rows, []string{name, "-", "-", "-", "-", oneLine(err.Error())})
			continue
		}
		v, completed, message := viewStored(b), "-", "not completed"
		if b.Complete() {
			v.URL, completed, message = backup.URL(store.String(), name), b.Completed.Format(time.RFC3339), ""
		}
		views = append(views, v)
		rows = append(rows, []string{name, size(b.Size), strconv.Itoa(len(b.Blocks)), string(b.Compression), completed, message})
	}
	return out.print(views, strings.Join(align(rows), "\n")+"\n")
}

// noBackup says that there is none of that name, and which there are.
func noBackup(ctx context.Context, store backup.Store, name string) error {
	names, err := backup.Names(ctx, store)
	switch {
	case err != nil:
		return err
	case len(names) == 0:
		return fmt.Errorf("%s has no backup %s, nor any other one", store, name)
	}
	const most = 5
	if more := len(names) - most; more > 1 {
		names = append(names[:most:most], fmt.Sprintf("%d more", more))
	}
	return fmt.Errorf("%s has no backup %s; it has %s", store, name, strings.Join(names, ", "))
}

func deleteBackup(ctx context.Context, store backup.Store, name string, out printer) error {
	done, err := backup.Delete(ctx, store, name)
	if err != nil {
		if ctx.Err() != nil {
			return errors.New("stopped; the same command goes on")
		}
		return err
	}
	text := fmt.Sprintf("%s: deleted, with %s\n", name, count(done.Blocks, "block"))
	switch {
	case !done.Found && done.Blocks > 0:
		text = fmt.Sprintf("%s: there is no such backup; deleted %s that none needs\n", name, count(done.Blocks, "block"))
	case !done.Found:
		return noBackup(ctx, store, name)
	case done.Kept != "":
		text = fmt.Sprintf("%s: deleted; its blocks are kept: %s\n", name, oneLine(done.Kept))
	}
	return out.print(struct {
		Name   string `json:"name"`
		Found  bool   `json:"found"`
		Blocks int    `json:"blocks"`
		Kept   string `json:"kept,omitempty"`
	}{name, done.Found, done.Blocks, done.Kept}, text)
}
