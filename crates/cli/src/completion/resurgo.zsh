#compdef resurgo
# zsh completion of resurgo. The program itself knows the words that may come next.

_resurgo() {
    local -a lines described
    local line
    lines=("${(@f)$("${(Q)words[1]}" complete-words "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
    for line in "${(@)lines[2,-1]}"; do
        [[ -n $line ]] || continue
        described+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
    done
    (( ! $#described )) || _describe -V resurgo described
    case $lines[1] in
    files) compset -P '-*='; _files ;;
    directories) compset -P '-*='; _files -/ ;;
    programs) _command_names -e; _files ;;
    esac
}

if [[ $funcstack[1] == _resurgo ]]; then
    _resurgo "$@"
else
    compdef _resurgo resurgo
fi
