package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

// How long a one-shot command waits for a git that is at work in the config
// directory. One that was killed leaves its lock behind.
const (
	gitPatience = 30 * time.Second
	gitAgain    = 250 * time.Millisecond
)

// load reads the config directory once. If git is at work there it waits, and says
// so to w.
func load(ctx context.Context, w io.Writer, dir string) (schema.Result, error) {
	snapshot, err := readConfig(ctx, w, dir)
	if err != nil {
		return schema.Result{}, err
	}
	return schema.NewLoader().Load(ctx, snapshot), ctx.Err()
}

// readConfig is load without understanding what was read.
func readConfig(ctx context.Context, w io.Writer, dir string) (configdir.Snapshot, error) {
	snapshot, err := configdir.Read(dir)
	if err == nil && snapshot.Busy {
		fmt.Fprintf(w, "waiting for git, which is at work in %s (for at most %v)\n", dir, gitPatience)
	}
	tick := time.NewTicker(gitAgain)
	defer tick.Stop()
	for began := time.Now(); err == nil && snapshot.Busy && time.Since(began) < gitPatience; {
		select {
		case <-ctx.Done():
			return configdir.Snapshot{}, context.Cause(ctx)
		case <-tick.C:
			snapshot, err = configdir.Read(dir)
		}
	}
	return snapshot, err
}
