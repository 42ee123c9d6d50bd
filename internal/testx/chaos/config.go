package chaos

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"
)

// config is a configuration: what people have declared.
type config struct {
	images  map[string]declaration
	evicted map[string]bool // by NODE/DISK
	closed  map[string]bool // allowScheduling: false, by NODE/DISK
	suspend bool
}

// declaration is a declared image.
type declaration struct {
	generation *generation
	copies     int // 0: one on each disk
}

func (c *config) clone() *config {
	return &config{maps.Clone(c.images), maps.Clone(c.evicted), maps.Clone(c.closed), c.suspend}
}

// declares reports whether the generation is the declared one of its image.
func (c *config) declares(g *generation) bool { return c.images[g.image.name].generation == g }

// intervals are the intervals of a run: short, so that other nodes act within seconds.
type intervals struct{ cleanup, recovery time.Duration }

// text returns the configuration as a document. JSON is YAML.
func (c *config) text(nodes []*node, url string, i intervals) []byte {
	type object = map[string]any
	settings := object{
		"cleanupWaitInterval": i.cleanup.String(), "recoveryWaitInterval": i.recovery.String(), "pruneLimit": "100%",
	}
	if c.suspend {
		settings["suspend"] = object{"reason": "a person looks at it"}
	}
	declared := object{}
	for _, n := range nodes {
		disks := object{}
		for _, d := range n.disks {
			disks[d.name] = object{
				"path": d.path, "evictionRequested": c.evicted[d.ref()], "allowScheduling": !c.closed[d.ref()],
			}
		}
		declared[n.name] = object{"address": n.url(), "disks": disks}
	}
	images := object{}
	for name, d := range c.images {
		m := d.generation.image
		declared := object{"source": object{"upload": object{}}}
		if !m.upload {
			declared["source"] = object{"download": object{"url": url + d.generation.path}}
		}
		if m.checksum {
			declared["checksum"] = d.generation.sha512
		}
		declared["minNumberOfCopies"] = any(d.copies)
		if d.copies == 0 {
			declared["minNumberOfCopies"] = "all"
		}
		images[name] = declared
	}
	b, err := json.MarshalIndent(object{"settings": settings, "nodes": declared, "images": images}, "", "  ")
	if err != nil {
		panic(err)
	}
	return b
}

// configDir is the config directory of one node. Odd nodes have a plain folder, in which a file is
// replaced; even ones have the symlinks of a mounted ConfigMap.
type configDir struct {
	path      string
	configMap bool
	version   int
}

const configFile = "cluster.yaml"

// write replaces the content of the directory; nil empties it.
func (d *configDir) write(text []byte) error {
	d.version++
	if !d.configMap {
		name := filepath.Join(d.path, configFile)
		if text == nil {
			return os.Remove(name)
		}
		return writeFile(name, text)
	}
	version := fmt.Sprintf("..version-%d", d.version)
	if err := os.MkdirAll(filepath.Join(d.path, version), 0o755); err != nil {
		return err
	}
	link := filepath.Join(d.path, configFile)
	if text == nil {
		_ = os.Remove(link) // a ConfigMap without keys has no links
	} else {
		if err := os.WriteFile(filepath.Join(d.path, version, configFile), text, 0o644); err != nil {
			return err
		}
		if err := os.Symlink("..data/"+configFile, link); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	old, _ := os.Readlink(filepath.Join(d.path, "..data")) // none at first
	data := filepath.Join(d.path, "..data_tmp")
	if err := os.Symlink(version, data); err != nil {
		return err
	}
	if err := os.Rename(data, filepath.Join(d.path, "..data")); err != nil {
		return err
	}
	if old == "" {
		return nil
	}
	return os.RemoveAll(filepath.Join(d.path, old))
}

// writeFile replaces a file by a rename.
func writeFile(name string, content []byte) error {
	if err := os.WriteFile(name+".new", content, 0o644); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}
