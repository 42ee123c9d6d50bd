package main

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

// A one-shot command waits while files in the config directory change or a git command runs there. The wait is at
// most gitTimeout, because a killed git process leaves its lock file behind.
const (
	gitTimeout      = 30 * time.Second
	gitPollInterval = 250 * time.Millisecond
)

// loadConfig reads and decodes the config directory once. If git is changing the directory, it
// writes a message to w and waits.
func loadConfig(ctx context.Context, w io.Writer, dir string) (load.Result, error) {
	snapshot, err := readConfig(ctx, w, dir)
	if err != nil {
		return load.Result{}, err
	}
	return load.NewLoader().Load(ctx, snapshot), ctx.Err()
}

// readConfig reads the files of the config directory like loadConfig, but does not decode them.
func readConfig(ctx context.Context, w io.Writer, dir string) (configdir.Snapshot, error) {
	snapshot, err := configdir.ReadTwice(dir)
	if snapshot.Busy {
		report.WriteLine(w, "waiting for a git command that is changing %s (for at most %v)", dir, gitTimeout)
	}
	tick := time.NewTicker(gitPollInterval)
	defer tick.Stop()
	for start := time.Now(); (err == nil && snapshot.Busy || errors.Is(err, configdir.ErrChanging)) && time.Since(start) < gitTimeout; {
		select {
		case <-ctx.Done():
			return configdir.Snapshot{}, context.Cause(ctx)
		case <-tick.C:
			snapshot, err = configdir.ReadTwice(dir)
		}
	}
	return snapshot, err
}
