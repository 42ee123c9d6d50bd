// Package configdir reads and watches the config directory.
//
// A daemon uses it in this order:
//
//  1. Watch sends an event when something below the directory may have changed.
//  2. Read returns a Snapshot: all configuration files.
//  3. A Debouncer decides from consecutive reads when the content is complete and
//     may be applied.
//  4. A RemovalConfirmer decides when the removal of an image from the
//     configuration is confirmed. Before that, nobody may act on the removal.
//
// A command that runs once uses ReadTwice.
//
// The package knows file names, symlinks, ConfigMap mounts and git checkouts. It does
// not parse the files: package load does.
//
// Reading order: snapshot.go and tree.go read the directory, debounce.go and removals.go decide, watch.go
// notifies by the Watcher of watcher.go, and git.go knows the files of git.
//
// Promises:
//
//   - What a Debouncer or ReadTwice accepts never mixes two generations of a ConfigMap, of git-sync or of another
//     symlink that is swapped.
//   - No file outside the directory is read, whatever its symlinks name.
//   - The number and the size of files and names are bounded.
//   - A missing, unreadable or empty directory is an error and never content.
package configdir
