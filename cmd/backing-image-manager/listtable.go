package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// listTable shows a list for people, a line for each generation.
func listTable(list map[string]listed) string {
	rows := [][]string{{"NAME", "UUID", "STATE", "PROGRESS", "SIZE", "DISK", "MESSAGE"}}
	for _, name := range slices.Sorted(maps.Keys(list)) {
		rows = append(rows, listRow(list[name]))
		for _, older := range list[name].Generations {
			rows = append(rows, listRow(older))
		}
	}
	return strings.Join(align(rows), "\n") + "\n"
}

func listRow(l listed) []string {
	bytes, on := "-", "-"
	if l.Size > 0 {
		bytes = size(l.Size)
	}
	if l.Disk != "" {
		on = l.Disk
	}
	return []string{l.Name, l.UUID, string(l.Status.State), fmt.Sprintf("%d%%", l.Status.Progress), bytes, on, oneLine(l.Status.ErrorMsg)}
}
