# fish completion of resurgo. The program itself knows the words that may come next.

function __resurgo_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -q current[1]; or set current ''
    set -l lines ($words[1] complete-words $words[2..-1] $current 2>/dev/null)
    set -q lines[2]; and printf '%s\n' $lines[2..-1]
    switch "$lines[1]"
        case files
            __fish_complete_path $current
        case directories
            __fish_complete_directories $current
        case programs
            __fish_complete_path $current
            __fish_complete_command
    end
end

complete -c resurgo -f -a '(__resurgo_complete)'
